#!/usr/bin/env python3
"""Changes a line under a transfer between two daemons, and measures how soon the transfer follows.

    bench/changes.py                      with CUBIC and with BBR: two minutes
    bench/changes.py --congestion bbr     where the kernels have that

The line carries 100 Mbit/s, 2 x 25 ms. A connection is reset, the line cut for a second, loses packets, becomes ten times slower, carries
shorter packets, and the sender gets another address. A row says within how many seconds the transfer carried 7 tenths of what the line lets
through then, for half a second; 2 are wanted. What arrives is checked. Exit status 1: something took longer, or other bytes arrived.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from wide.lab import COMMAND, HOSTS, await_link, lab, lab_of, on, use, words
from wide.lines import CONTROLS

LAB = """
[site.a]
network = '10.1.0.0/24'
hosts = ['a1']
[site.b]
network = '10.2.0.0/24'
hosts = ['b1']
[link.ab]
between = ['a', 'b']
rate = '100M'
delay = '25ms'
"""
STEP = 0.1
"""Seconds for which arrivals are counted together."""
WINDOW, SHARE, WANTED = 0.5, 0.7, 2.0

TAKER = """
import hashlib, json, socket, sys, time
listener = socket.create_server(("", 5201))
print("ready", flush=True)
connection, _ = listener.accept()
sums, arrivals = hashlib.sha256(), []
while got := connection.recv(1 << 18):
    sums.update(got)
    arrivals.append((time.monotonic(), len(got)))
connection.sendall(sums.hexdigest().encode())
print(json.dumps(arrivals))
"""

GIVER = """
import hashlib, os, socket, sys
connection, noise, sums = socket.create_connection((sys.argv[1], 5201)), os.urandom(1 << 20), hashlib.sha256()
while not os.path.exists(sys.argv[2]):
    sums.update(noise)
    connection.sendall(noise)
connection.shutdown(socket.SHUT_WR)
got = connection.recv(64, socket.MSG_WAITALL)
print("same" if got.decode() == sums.hexdigest() else "other bytes")
"""

RESET = """
set -e
port=$(ss -Htn state established '( dport = :7780 or sport = :7780 )' | head -n 1 | awk '{print $3}' | sed 's/.*://')
nft add table ip cut
nft 'add chain ip cut out { type filter hook output priority 0; }'
nft add rule ip cut out tcp sport $port reject with tcp reset
sleep 0.2
nft delete table ip cut
"""

MOVE = """
set -e
route=$(ip route | grep '^default')
card=$(echo $route | sed 's/.* dev \\([^ ]*\\).*/\\1/')
ip addr flush dev $card scope global
ip addr add 10.1.0.77/24 dev $card
ip route replace $route
"""


@dataclass
class Event:
    """Something that happens to the line, or to a host, and the Mbit/s that the line lets through then."""

    name: str
    carries: float
    setting: str = ""
    script: str = ""


EVENTS = (
    Event("a connection is reset", 100, script=RESET),
    Event("cut for a second", 100),
    Event("5 % lost", 95, "loss=5%"),
    Event("nothing lost", 100, "loss=0"),
    Event("10 Mbit/s", 10, "rate=10M"),
    Event("100 Mbit/s", 100, "rate=100M"),
    Event("packets of 1280", 100, "mtu=1280"),
    Event("another address", 100, script=MOVE),
)


def main() -> int:
    """Parses the command line, measures, prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog="Build first: make build")
    parser.add_argument("--congestion", choices=CONTROLS, action="append", help="only this congestion control")
    options = parser.parse_args()
    slow = False
    for congestion in options.congestion or CONTROLS:
        print(f"{congestion:<28}{'s':>6}{'Mbit/s then':>14}", flush=True)
        for name, late, rate in _measure(congestion):
            # By several connections of CUBIC a line that loses so much carries less.
            counts = not (congestion == "cubic" and "lost" in name and name != "nothing lost")
            slow |= counts and (late is None or late > WANTED)
            told = "never" if late is None else f"{late:.1f}"
            print(f"  {name:<26}{told:>6}{rate:>14.1f}{'' if counts else '  (not judged)'}", flush=True)
    return 1 if slow else 0


def _measure(congestion: str) -> list[tuple[str, float | None, float]]:
    with lab_of(LAB), tempfile.TemporaryDirectory() as folder:
        for host in HOSTS:
            use(host, congestion)
        await_link()
        return _transfer(Path(folder) / "end")


def _transfer(end: Path) -> list[tuple[str, float | None, float]]:
    taker = subprocess.Popen(words("b1", "python3", "-c", TAKER), stdout=subprocess.PIPE, text=True)
    taker.stdout.readline()
    giver = subprocess.Popen(words("a1", str(COMMAND), "exec", "--", "python3", "-c", GIVER, "b1", str(end)), stdout=subprocess.PIPE, text=True)
    try:
        time.sleep(15)
        times = []
        for event in EVENTS:
            _happen(event)
            times.append(time.monotonic())
            time.sleep(6)
        end.touch()
        same = giver.communicate(timeout=120)[0].strip()
        arrivals = json.loads(taker.communicate(timeout=60)[0])
    finally:
        giver.kill()
        taker.kill()
    if same != "same":
        raise SystemExit(f"changes.py: {same or 'the transfer ended'}")
    return [(event.name, *_follows(arrivals, at, event.carries)) for event, at in zip(EVENTS, times)]


def _happen(event: Event) -> None:
    if event.setting:
        lab("set", "ab", event.setting)
    elif event.script:
        on("a1", "sh", "-c", event.script)
    else:
        lab("cut", "ab")
        time.sleep(1)
        lab("heal", "ab")


def _follows(arrivals: list[list[float]], at: float, carries: float) -> tuple[float | None, float]:
    """How long after `at` a window begins in which enough arrives, and the Mbit/s of seconds 2 to 6."""
    def rate(begin: float, length: float) -> float:
        return sum(count for when, count in arrivals if begin <= when < begin + length) * 8 / length / 1e6

    steps = (step * STEP for step in range(round((6 - WINDOW) / STEP)))
    return next((step for step in steps if rate(at + step, WINDOW) >= SHARE * carries), None), rate(at + 2, 4)


if __name__ == "__main__":
    sys.exit(main())
