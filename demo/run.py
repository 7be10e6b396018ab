#!/usr/bin/env python3
"""An unmodified redis, plain and under Madrigal in the same run; without redis, Python's own sockets.

Both servers are up all the time; runs of plain TCP and of Madrigal take turns. Everything is started here, in a directory that is thrown
away, and ended here.
"""

import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
MADRIGAL = os.path.abspath(os.environ.get("MADRIGAL", os.path.join(HERE, "../target/release/madrigal")))
WRAP = [MADRIGAL, "exec", "--"]
ROUNDS = 5
SECONDS = 0.8
"""Seconds of one run, about."""


class Redis:
    """redis-server and redis-benchmark."""

    unit = "requests/s"

    def __init__(self):
        version = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=True).stdout
        self.name = "redis-server and redis-benchmark " + re.search(r"v=(\S+)", version)[1]

    def server(self, port, directory):
        return ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", directory]

    def client(self, port, clients, requests):
        return ["redis-benchmark", "-p", str(port), "-c", str(clients), "-n", str(requests), "-t", "get", "--csv"]

    def rate(self, output):
        return float(re.findall(r'^"GET[^,]*,"([0-9.]+)"', output, re.M)[-1])


class Sockets:
    """An echo server and its client in plain Python sockets."""

    unit = "echoes/s"
    name = "Python's own sockets (no redis here)"

    def server(self, port, directory):
        return [sys.executable, os.path.join(HERE, "echo.py"), "server", str(port)]

    def client(self, port, clients, requests):
        return [sys.executable, os.path.join(HERE, "echo.py"), "client", str(port), str(clients), str(requests)]

    def rate(self, output):
        return float(output.split()[-1])


class Demo:
    def __init__(self, kind, directory):
        self.kind, self.directory, self.running = kind, directory, []
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("MADRIGAL_") and k != "LD_PRELOAD"}
        self.env["MADRIGAL_DIR"] = os.path.join(directory, "rendezvous")

    def start(self, command, **how):
        process = subprocess.Popen(command, env=self.env, stderr=subprocess.DEVNULL, text=True, **how)
        self.running.append(process)
        return process

    def serve(self, wrap):
        port = free_port()
        process = self.start(wrap + self.kind.server(port, self.directory), stdout=subprocess.DEVNULL)
        for _ in range(300):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return process, port
            if process.poll() is not None:
                break
            time.sleep(0.05)
        sys.exit(f"demo: {' '.join(process.args)} does not answer on port {port}")

    def measure(self, wrap, port, clients, requests, watch=None):
        client = self.start(wrap + self.kind.client(port, clients, requests), stdout=subprocess.PIPE)
        report = look(watch, client, self.env) if watch else None
        output, _ = client.communicate(timeout=60)
        self.running.remove(client)
        if client.returncode != 0:
            sys.exit(f"demo: {' '.join(client.args)} ended with {client.returncode}: {output}")
        return self.kind.rate(output), report

    def end(self):
        for process in self.running:
            process.terminate()
        for process in self.running:
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def look(server, client, env):
    """What `madrigal why` says of the server while the client runs: once a connection is in shared memory, or at the end."""
    report = ""
    while client.poll() is None:
        seen = subprocess.run([MADRIGAL, "why", str(server.pid)], capture_output=True, text=True, env=env).stdout
        report = seen if " shm " in seen or not report else report
        if " shm " in seen:
            break
        time.sleep(0.02)
    return report


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def compare(demo, plain, wrapped, clients):
    """Medians of runs in turn, and what `why` said during the first wrapped one."""
    trial, _ = demo.measure([], plain[1], clients, 5000)
    requests = {False: round(trial * SECONDS)}
    trial, _ = demo.measure(WRAP, wrapped[1], clients, 5000)
    requests[True] = round(trial * SECONDS)
    rates, report = {False: [], True: []}, None
    for _ in range(ROUNDS):
        rates[False].append(demo.measure([], plain[1], clients, requests[False])[0])
        rate, seen = demo.measure(WRAP, wrapped[1], clients, requests[True], None if report else wrapped[0])
        rates[True].append(rate)
        report = report or seen
    return statistics.median(rates[False]), statistics.median(rates[True]), report


def used_by_others(seconds=0.5):
    """How many CPUs other programs use while nothing of the demo runs."""
    def busy():
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system, idle, iowait, irq, softirq, steal, *_ = map(int, file.readline().split()[1:])
        return user + nice + system + irq + softirq + steal

    before = busy()
    time.sleep(seconds)
    return (busy() - before) / os.sysconf("SC_CLK_TCK") / seconds


def show(demo):
    kind = demo.kind
    print(f"Unmodified: {kind.name}. Medians of {ROUNDS} runs in turn, on {os.cpu_count()} CPUs.")
    others = used_by_others()
    print(f"Other programs use {others:.1f} of these CPUs now.")
    if others > 0.25 * os.cpu_count():
        print("That is much: this machine is busy. Four processes of the demo and those programs take turns on the CPUs, and a figure says more\n"
              "of whose turn it was than of a path. A ratio below 1 is likely then. Try again when the machine is quiet.")
    print()
    plain, wrapped = demo.serve([]), demo.serve(WRAP)
    print(f"{'clients':>8}{'plain TCP':>14}{'Madrigal':>14}   {'ratio':<6} ({kind.unit})", flush=True)
    reports = {}
    for clients in (1, 50):
        tcp, ours, reports[clients] = compare(demo, plain, wrapped, clients)
        if ours < tcp:
            print(f"The next ratio is below 1. Other programs use {used_by_others():.1f} CPUs; `madrigal why` below says which path was taken.")
        print(f"{clients:>8}{tcp:>14,.0f}{ours:>14,.0f}   {ours / tcp:<6.2f}", flush=True)
    print(f"\nmadrigal why {wrapped[0].pid}, while one client ran:\n")
    print(reports[1])
    lines = reports[50].splitlines()
    by_shm = sum(" shm " in line for line in lines)
    print(f"With 50 clients, when looked at: {by_shm} of {max(len(lines) - 2, 0)} connections in shared memory.")


def main():
    if not os.access(MADRIGAL, os.X_OK):
        sys.exit(f"demo: no {MADRIGAL}: type `make demo`, which builds it")
    redis = shutil.which("redis-server") and shutil.which("redis-benchmark")
    directory = tempfile.mkdtemp(prefix="madrigal-demo-")
    demo = Demo(Redis() if redis else Sockets(), directory)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        show(demo)
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        demo.end()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
