#!/usr/bin/env python3
"""MPI, CORBA and SOAP at the same time in the same two processes: Open MPI, omniORB and gSOAP, unmodified, plain and over Madrigal.

    tests/mpi/together.py                   for a moment: every answer is checked, and which paths were taken
    tests/mpi/together.py --alone           and how fast each is alone and beside the others (--json: as one line)

A part's share is its rate beside the others against its rate alone; shares that add up to 1 mean that living together costs nothing.
Features (docs/features.md): P13, N9.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
from dataclasses import dataclass

from bed import programs
from bed.hosts import Unable
from bed.mpis import command_line, provider_missing

PARTS = ("mpi", "corba", "soap")
LIMIT_S = 60.0
JOB = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "2"]


class Wrong(Exception):
    """What did not hold."""


@dataclass(frozen=True)
class Run:
    """What a job said: MiB/s of each part; and what `madrigal why` said of its first rank meanwhile."""

    rates: dict[str, float]
    said: list[str]
    why: dict


def main() -> int:
    """Parses the command line, runs, and prints the table."""
    options = _parse()
    try:
        if why := provider_missing("madrigal", typed=True):
            raise Unable(why)
        program = programs.together()
        beside = {side: _run(program, PARTS, options.seconds, side) for side in ("plain", "madrigal")}
        _check(beside["madrigal"])
        alone = {side: _alone(program, options.seconds, side) for side in beside} if options.alone else {}
    except Unable as why:
        print(json.dumps({"skipped": str(why)}) if options.json else f"skipped: {why}")
        return 0
    except Wrong as wrong:
        print(f"FAILED: {wrong}")
        return 1
    found = {side: _figures(run.rates, alone.get(side)) for side, run in beside.items()}
    print(json.dumps(found) if options.json else _table(found))
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each run (2)")
    parser.add_argument("--alone", action="store_true", help="measure each part alone too")
    parser.add_argument("--json", action="store_true", help="the figures as one line")
    return parser.parse_args()


def _alone(program: str, seconds: float, side: str) -> dict[str, float]:
    return {part: _run(program, (part,), seconds, side).rates[part] for part in PARTS}


def _run(program: str, parts: tuple[str, ...], seconds: float, side: str) -> Run:
    """One job. Raises `Wrong` when it does not end well, or in time."""
    what = f"{side}, {', '.join(parts)}"
    wrap = [str(command_line()), "exec", "--"] if side == "madrigal" else []
    job = subprocess.Popen([*wrap, *JOB, program, ",".join(parts), str(seconds)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    watchdog = threading.Timer(LIMIT_S, job.kill)
    watchdog.start()
    said, why = [], {}
    try:
        for line in job.stdout:
            said.append(line.strip())
            if wrap and line.startswith("pid "):
                why = _why(int(line.split()[1]), parts)
        code = job.wait()
    finally:
        job.kill()
        watchdog.cancel()
    if code or "ok" not in said:
        raise Wrong(f"{what}: ended with {code}: {' / '.join(line for line in said if line)[:600]}")
    rates = {words[0]: float(words[1]) for words in map(str.split, said) if words and words[0] in PARTS}
    return Run(rates, said, why)


def _why(pid: int, parts: tuple[str, ...]) -> dict:
    """What `madrigal why` says of a rank as soon as every part has sent something, or as long as it lives."""
    while True:
        told = subprocess.run([str(command_line()), "why", str(pid), "--json"], capture_output=True, text=True)
        if told.returncode:
            raise Wrong(f"madrigal why {pid}: {told.stderr.strip()}")
        process = json.loads(told.stdout)["processes"][0]
        if len(_by_ring(process)) >= len(set(parts) - {"mpi"}) and ("mpi" not in parts or _by_memory(process)):
            return process


def _by_ring(process: dict) -> list[dict]:
    """Connections whose bytes go by a ring."""
    return [each for each in process["connections"] if each["path"] == "shm" and each["ring_in"] and each["ring_out"]]


def _by_memory(process: dict) -> list[dict]:
    """Ranks whose messages go by shared memory."""
    peers = [peer for worker in process["workers"] for peer in worker["peers"]]
    return [peer for peer in peers if peer["path"] == "shm" and peer["bytes_out"]]


def _check(run: Run) -> None:
    """Every middleware over Madrigal: MPI by the provider, the others' connections by rings."""
    if "loaded libmadrigal-fi" not in run.said:
        raise Wrong("MPI did not load the provider")
    if len(_by_ring(run.why)) < 2 or not _by_memory(run.why):
        raise Wrong(f"not every part went by shared memory: {run.why}")


def _table(found: dict) -> str:
    lines = [f"{'MiB/s':<10}" + "".join(f"{part + ' ' + how:>18}" for part in PARTS for how in ("alone", "beside")) + f"{'shares':>10}"]
    for side, rates in found.items():
        cells = [rates[how].get(part) for part in PARTS for how in ("alone", "beside")]
        total = f"{rates['shares']:10.2f}" if rates["alone"] else f"{'-':>10}"
        lines.append(f"{side:<10}" + "".join(f"{cell:18,.0f}" if cell else f"{'-':>18}" for cell in cells) + total)
    return "\n".join([*lines, "ok"])


def _figures(beside: dict[str, float], alone: dict[str, float] | None) -> dict:
    """The rates, and what all parts together reach of what they reach alone."""
    shares = sum(beside[part] / alone[part] for part in PARTS) if alone else None
    return {"beside": beside, "alone": alone or {}, "shares": shares}


if __name__ == "__main__":
    sys.exit(main())
