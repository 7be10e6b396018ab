#!/usr/bin/env python3
"""Measures MPIs over Madrigal's provider and over what they have themselves, turn about; prints JSON. For bench/rows/mpi.py.

    tests/mpi/figures.py latency-mpich --runs 5 --milliseconds 200
    tests/mpi/figures.py hosts-mpich --runs 7 --before ../other/target/release --table
    tests/mpi/figures.py --list

For each figure: our values, those of each peer, and why some contender is missing. With --before, those of another build of our
provider too, in the same turns.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from bed import programs
from bed.hosts import AGENT, Unable, enter_cage
from bed.mpis import HOME, OURS, Job, all_mpis, provider_missing
from bed.scenes import SCENES, World, world_of

SIZES = ("8", "65536", "1048576")
TIMES = {"pingpong": r"figure pingpong bytes (\d+) median_us ([0-9.]+)", "bandwidth": r"figure bandwidth bytes (\d+) MB/s ([0-9.]+)",
         "allreduce": r"figure allreduce bytes (\d+) ranks \d+ median_us [0-9.]+ mean_us ([0-9.]+)",
         "idle": r"figure (idle) percent ([0-9.]+)"}


@dataclass(frozen=True)
class Contender:
    """An MPI and the way its messages take."""

    mpi: str
    way: str
    folder: Path | None = None
    """Where our provider lies, if it is not the one that was built here."""

    @property
    def label(self) -> str:
        """For the table."""
        return f"{self.mpi}/{'before' if self.folder else self.way}"


@dataclass(frozen=True)
class Contest:
    """Programs that are run by all contenders in turn; ours is the first."""

    contenders: tuple[Contender, ...]
    runs: tuple[tuple[str, ...], ...]
    ranks: int = 2
    hosts: int = 1


def _pairs(*names: str) -> tuple[Contender, ...]:
    return tuple(Contender(*name.split("/")) for name in names)


TALK = (("pingpong", "{ms}", "0", *SIZES), ("bandwidth", "{ms}", "1048576"))
SUMS = (("allreduce", "8", "5000"), ("allreduce", "65536", "1000"))
HERE, THERE = ("openmpi4/vader", "mpich/ucx", "impi19/shm"), ("mpich/ucx-tcp", "openmpi4/btl-tcp", "mpich/tcp")
CONTESTS = {
    "latency-openmpi4": Contest(_pairs("openmpi4/madrigal", *HERE), TALK),
    "latency-openmpi5": Contest(_pairs("openmpi5/madrigal", *HERE), TALK),
    "latency-mpich": Contest(_pairs("mpich/madrigal", *HERE), TALK),
    "latency-impi19": Contest(_pairs("impi19/madrigal", *HERE), TALK),
    "hosts-mpich": Contest(_pairs("mpich/madrigal", *THERE), TALK, hosts=2),
    "hosts-openmpi4": Contest(_pairs("openmpi4/madrigal", *THERE), TALK, hosts=2),
    **{f"allreduce{ranks}-{mpi}": Contest(_pairs(f"{mpi}/madrigal", "impi19/shm"), SUMS, ranks=ranks)
       for ranks in (4, 8) for mpi in ("mpich", "openmpi4", "openmpi5", "impi19")},
    "idle": Contest(_pairs("mpich/madrigal"), (("idle", "3"),)),
}


def main() -> int:
    """Parses the command line, measures one contest, prints JSON."""
    options = _parse()
    if options.list:
        print("\n".join(CONTESTS))
        return 0
    try:
        if why := provider_missing(OURS):
            raise Unable(why)
        enter_cage()
        contest = CONTESTS[options.contest]
        if options.before:
            contest = _with_before(contest, options.before)
        found = _measure(contest, options.runs, options.milliseconds)
        print(_table(found) if options.table else json.dumps(found))
        return 0
    except Unable as why:
        print(json.dumps({"skipped": str(why)}))
        return 0


def _with_before(contest: Contest, release: Path) -> Contest:
    """The same with the provider of another build as one contender more."""
    folder = HOME / "before"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy2(release / "libmadrigal_ofi.so", folder / "libmadrigal-fi.so")
    ours, *others = contest.contenders
    return replace(contest, contenders=(ours, replace(ours, folder=folder), *others))


def _table(found: dict) -> str:
    """Medians, and ours against the others: above 1 is more."""
    lines = []
    for key, values in found["values"].items():
        ours = median(values[found["ours"]])
        told = [f"{label} {median(runs):.1f} ({ours / median(runs):.2f})" for label, runs in values.items() if label != found["ours"]]
        lines.append(f"{key:<20} {ours:.1f}   {'   '.join(told)}")
    return "\n".join(lines + [f"without {label}: {why}" for label, why in found["missing"].items()])


def _measure(contest: Contest, runs: int, milliseconds: int) -> dict[str, object]:
    values: dict[str, dict[str, list[float]]] = {}
    missing: dict[str, str] = {}
    scene = next(scene for scene in SCENES if scene.name == ("one", "two")[contest.hosts - 1])
    with world_of(scene) as world:
        for turn in range(runs):
            for contender in contest.contenders if turn % 2 == 0 else reversed(contest.contenders):
                if contender.label in missing:
                    continue
                try:
                    for words in contest.runs:
                        for key, value in _once(world, contest, contender, [word.format(ms=milliseconds) for word in words]).items():
                            values.setdefault(key, {}).setdefault(contender.label, []).append(value)
                except Unable as why:
                    missing[contender.label] = str(why)
                    if contender == contest.contenders[0]:
                        raise
    return {"ours": contest.contenders[0].label, "values": values, "missing": missing}


def _once(world: World, contest: Contest, contender: Contender, words: list[str]) -> dict[str, float]:
    mpi = next(mpi for mpi in all_mpis() if mpi.name == contender.mpi)
    if mpi.missing:
        raise Unable(mpi.missing)
    hosts = list(world.hosts)
    first = contest.ranks // len(hosts)
    blocks = [(hosts[0], first), *((host, contest.ranks - first) for host in hosts[1:])]
    job = Job([programs.bed(mpi), *words], blocks, contender.way, AGENT, world.folder / "machines",
              {"FI_PROVIDER_PATH": str(contender.folder)} if contender.folder else {})
    log = world.folder / "log"
    code = world.hosts[hosts[0]].run(mpi.command(job), 120, log)
    text = log.read_text(errors="replace")
    world.reset()
    if code != 0:
        raise Unable(f"{contender.label}: {' '.join(words)}: {'not done after 120 s' if code is None else f'ended with {code}'}: {text.strip()[-200:]}")
    if contender.way == OURS and "libmadrigal-fi" not in text:
        raise Unable(f"{contender.label}: our provider was not loaded")
    return {f"{words[0]} {size}": float(value) for size, value in re.findall(TIMES[words[0]], text)}


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contest", nargs="?", choices=list(CONTESTS), default="latency-mpich")
    parser.add_argument("--runs", type=int, default=5, help="of each contender (5)")
    parser.add_argument("--milliseconds", type=int, default=200, help="for each size in a run (200)")
    parser.add_argument("--before", type=Path, metavar="DIR", help="another build's target/release, measured in the same turns")
    parser.add_argument("--table", action="store_true", help="medians for people instead of JSON")
    parser.add_argument("--list", action="store_true", help="name the contests and end")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
