#!/usr/bin/env python3
"""Measures what a link between daemons takes of processors, against plain TLS over TCP with the same cipher.

    bench/cpu.py                                  two daemons against OpenSSL: half a minute
    bench/cpu.py --stack 'tls/stripe(8)/tcp'      what the link is made of (MADRIGAL_STACK); one session above all connections here
    bench/cpu.py --gigabytes 4 --runs 5

Two hosts of a lab, without a line between them that would hold anything up. One stream of bytes that cannot be compressed, by `madrigal
forward` and two daemons; then as many by s_client and s_server, which take them from a pipe and give them to another one, as daemons take
them from a program and give them to one; and by two programs that make them and drop them (Python's ssl, records as long as may be), which
is less than daemons do. What counts are user and system time (proc(5), utime and stime) of the two daemons, or of the two programs. Runs
are interleaved; medians. Exit status 1: a byte takes more than 1.3 times what it takes by s_client and s_server.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

from wide.lab import COMMAND, await_link, lab_of, on, words

LAB = "[site.a]\nnetwork = '10.1.0.0/24'\nhosts = ['a1', 'b1']\n"
WANTED = 1.3
PORT = 5201
CIPHER = "TLS_AES_256_GCM_SHA384"
"""The first one that daemons offer."""

TAKER = """
import socket
listener = socket.create_server(("", 5201))
print("ready", flush=True)
connection, _ = listener.accept()
count = 0
while got := connection.recv(1 << 20):
    count += len(got)
connection.sendall(b"%d" % count)
"""

GIVER = """
import os, socket, sys
noise, left = os.urandom(1 << 20), int(sys.argv[2])
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
while left > 0:
    left -= connection.send(noise[:min(left, 1 << 20)])
connection.shutdown(socket.SHUT_WR)
print(connection.recv(99).decode())
"""

NOISE = """
import os, sys
noise, left = os.urandom(1 << 20).translate(bytes(0 if chr(byte) in "QRKkB" else byte for byte in range(256))), int(sys.argv[1])
while left > 0:
    left -= os.write(1, noise[:min(left, 1 << 20)])
"""
"""Without the letters that s_client takes for commands."""


MAKER = """
import os, socket, ssl, sys
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
noise, left = os.urandom(1 << 20), int(sys.argv[2])
with context.wrap_socket(socket.create_connection(("127.0.0.1", int(sys.argv[1])))) as connection:
    assert connection.cipher()[0] == sys.argv[3], connection.cipher()
    while left > 0:
        left -= connection.send(noise[:min(left, 1 << 20)])
    connection.shutdown(socket.SHUT_WR)
    while connection.recv(1 << 16):
        pass
"""

DROPPER = """
import socket, ssl, sys
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[2], sys.argv[1])
listener, buffer, count = socket.create_server(("127.0.0.1", 0)), bytearray(1 << 18), 0
print(listener.getsockname()[1], flush=True)
connection = context.wrap_socket(listener.accept()[0], server_side=True)
while got := connection.recv_into(buffer):
    count += got
print(count)
"""


def main() -> int:
    """Parses the command line, measures, prints a table."""
    options = _parse()
    count = int(options.gigabytes * 1e9)
    ours, plain, bare = [], [], []
    if options.stack:
        os.environ["MADRIGAL_STACK"] = options.stack
    with lab_of(LAB):
        await_link()
        stack = _link()
        for _ in range(options.runs):
            ours.append(_daemons(count))
            plain.append(_openssl(count))
            bare.append(_programs(count))
    print(f"{options.gigabytes:g} GB by one stream, {options.runs} runs, medians     CPU s/GB")
    daemons, openssl, programs = (statistics.median(taken) * 1e9 / count for taken in (ours, plain, bare))
    ratio = daemons / openssl
    print(f"  {f'two daemons, {stack}':<52}{daemons:>10.2f}")
    print(f"  {f's_client, s_server, {CIPHER}':<52}{openssl:>10.2f}   ratio {ratio:.2f}, {WANTED} at most")
    print(f"  {'two programs without anything else to do':<52}{programs:>10.2f}   ratio {daemons / programs:.2f}")
    return 1 if ratio > WANTED else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog="Build first: make build")
    parser.add_argument("--gigabytes", type=float, default=1.0, metavar="N", help="what is carried in a run (1)")
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="runs of each (3)")
    parser.add_argument("--stack", metavar="STACK", help="what the link is made of; without it what daemons choose")
    return parser.parse_args()


def _link() -> str:
    peers = json.loads(on("a1", str(COMMAND), "status", "--json"))["peers"]
    return next(link["stack"] for peer in peers for link in peer["links"])


def _daemons(count: int) -> float:
    """Seconds of a processor that the two daemons take for so many bytes."""
    taker = subprocess.Popen(words("b1", "python3", "-c", TAKER), stdout=subprocess.PIPE, text=True)
    forward = None
    try:
        taker.stdout.readline()
        forward = subprocess.Popen(words("a1", str(COMMAND), "forward", "0", f"b1:{PORT}"), stdout=subprocess.PIPE, text=True)
        port = forward.stdout.readline().replace(":", " ").split()[1]
        before = sum(map(_taken, ("a1", "b1")))
        came = on("a1", "python3", "-c", GIVER, port, str(count)).strip()
        if came != str(count):
            raise SystemExit(f"cpu.py: {came} of {count} bytes came")
        return sum(map(_taken, ("a1", "b1"))) - before
    finally:
        for program in filter(None, (taker, forward)):
            program.kill()
            program.wait()


def _taken(host: str) -> float:
    """User and system time of a host's daemon."""
    pid = json.loads(on(host, str(COMMAND), "status", "--json"))["pid"]
    fields = on(host, "cat", f"/proc/{pid}/stat").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _openssl(count: int) -> float:
    """The same of the two programs of OpenSSL."""
    both = ["-tls1_3", "-ciphersuites", CIPHER, "-quiet"]
    quiet = {"stderr": subprocess.DEVNULL}
    with tempfile.TemporaryDirectory() as folder:
        key, certificate = _certificate(folder)
        serve = ["openssl", "s_server", "-accept", str(PORT), "-naccept", "1", "-key", key, "-cert", certificate, *both]
        # Its input stays open: it would end with that.
        server = subprocess.Popen(serve, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **quiet)
        counter = subprocess.Popen(["wc", "-c"], stdin=server.stdout, stdout=subprocess.PIPE, text=True)
        _await_listener()
        noise = subprocess.Popen([sys.executable, "-c", NOISE, str(count)], stdout=subprocess.PIPE)
        call = ["openssl", "s_client", "-connect", f"127.0.0.1:{PORT}", *both, "-no_ign_eof"]
        client = subprocess.Popen(call, stdin=noise.stdout, stdout=subprocess.DEVNULL, **quiet)
        # Only the two programs have these ends of the pipes, so that each sees the other's end.
        server.stdout.close()
        noise.stdout.close()
        taken = sum(_used(program) for program in (client, server))
        noise.wait()
        came = counter.communicate(timeout=60)[0].strip()
    if came != str(count):
        raise SystemExit(f"cpu.py: {came} of {count} bytes came by openssl")
    return taken


def _programs(count: int) -> float:
    """The same of two programs that do nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        dropper = subprocess.Popen([sys.executable, "-c", DROPPER, *_certificate(folder)], stdout=subprocess.PIPE, text=True)
        port = dropper.stdout.readline().strip()
        maker = subprocess.Popen([sys.executable, "-c", MAKER, port, str(count), CIPHER])
        came = dropper.stdout.readline().strip()
        taken = _used(maker) + _used(dropper)
    if came != str(count):
        raise SystemExit(f"cpu.py: {came} of {count} bytes came by the two programs")
    return taken


def _certificate(folder: str) -> tuple[str, str]:
    """A key and a certificate, in files."""
    key, certificate = f"{folder}/key.pem", f"{folder}/cert.pem"
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=bench"]
    subprocess.run([*make, "-keyout", key, "-out", certificate], check=True, stderr=subprocess.DEVNULL)
    return key, certificate


def _used(program: subprocess.Popen[bytes]) -> float:
    """Waits for a program; the user and system time that it took."""
    _, _, used = os.wait4(program.pid, 0)
    program.returncode = 0
    return used.ru_utime + used.ru_stime


def _await_listener() -> None:
    for _ in range(100):
        if subprocess.run(["ss", "-Htln", f"sport = :{PORT}"], capture_output=True, check=True).stdout:
            return
        time.sleep(0.05)
    raise SystemExit("cpu.py: s_server does not listen after 5 s")


if __name__ == "__main__":
    sys.exit(main())
