#!/usr/bin/env python3
"""Measures links between daemons over long, lossy lines of a lab against plain TCP on the same line.

    bench/wan.py                       every line, with CUBIC and with BBR: ten minutes
    bench/wan.py --only thin,fat       some of them; --list names them
    bench/wan.py --congestion cubic    where the kernels may have that only
    bench/wan.py --others --page P     other tools, too, and a page with the figures and a plot of every connection (docs/perf-wan.md)

Each line is a `madrigal lab` with a fixed seed, so that the same packets are lost each time. Plain TCP is one stream of iperf3 from host
to host; Madrigal is the same command under `madrigal exec`, through two daemons, by TLS. Both are counted where they arrive, behind a
warm-up: what slow start, and the search for the number of connections, take is not in the figures. Lines of `text` and `noise` carry the
sources of this repository, and random bytes, by a sender of our own, for what iperf3 sends cannot be compressed. The line `datagrams` is of
UDP: more than the line carries, to a port of the other host, and to one of `madrigal forward --udp`, of which some may be lost; then two
thirds of that, for how late 99 of 100 arrive. The line `urgent` has two bulk transfers of iperf3, and beside them short questions of class
`urgent`, of which 99 of 100 are to be answered within twice what they take on the empty line. The line `sor` has a job of MPICH, two ranks
at each site, which sends 128 KiB each way behind each half of a sweep (tests/mpi/setup --light brings MPICH). Exit status 1: a line carries less than it is to.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from dataclasses import asdict
from pathlib import Path

from wide import page
from wide.lab import ROOT
from wide.lines import CONTROLS, LINES
from wide.measure import measure


def main() -> int:
    """Parses the command line, measures, prints a table."""
    options = _parse()
    if options.list:
        print("\n".join(f"{line.name:<10}{line.text()}" for line in LINES))
        return 0
    print("line      control     plain   Madrigal   ratio  connections  at least", flush=True)
    results = []
    for line in options.lines:
        # What datagrams do hangs on no congestion control of TCP.
        for congestion in options.congestion[:1 if line.tolerance else None]:
            results.append(measure(line, congestion, options.seconds, options.others))
            print("\n".join([results[-1].row(), *(other.row() for other in results[-1].others)]), flush=True)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    if options.page:
        page.write(options.page, results, options.seconds)
    print(f"Mbit/s as received, one stream; wrote {options.page or options.json}")
    return 1 if any(result.falls_short() for result in results) else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog="Build first: make build")
    parser.add_argument("--only", metavar="NAME,NAME", help="only these lines")
    parser.add_argument("--list", action="store_true", help="name the lines and end")
    parser.add_argument("--congestion", choices=CONTROLS, action="append", help="only this congestion control")
    parser.add_argument("--seconds", type=int, default=20, metavar="S", help="length of a run behind the warm-up (20)")
    parser.add_argument("--json", type=Path, default=ROOT / "target" / "bench-wan.json", metavar="PATH", help="where results go")
    parser.add_argument("--others", action="store_true", help="also other tools, on lines of one stream of iperf3")
    parser.add_argument("--page", type=Path, metavar="PATH", help="write a page of the figures, with a plot beside it")
    options = parser.parse_args()
    if options.page and not importlib.util.find_spec("matplotlib"):
        parser.error("a page needs matplotlib: python3 -m pip install matplotlib, or with Debian's Python python3-matplotlib")
    names = options.only.split(",") if options.only else [line.name for line in LINES]
    if unknown := set(names) - {line.name for line in LINES}:
        parser.error(f"there is no line {', '.join(sorted(unknown))}: --list names them")
    options.lines = [line for line in LINES if line.name in names]
    options.congestion = options.congestion or list(CONTROLS)
    return options


if __name__ == "__main__":
    sys.exit(main())
