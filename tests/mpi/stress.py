#!/usr/bin/env python3
"""Many jobs over Madrigal's libfabric provider, and long ones while the processors are busy, to find what happens seldom.

    tests/mpi/stress.py                              MPICH's wheel and Debian's Open MPI, each part for a moment
    tests/mpi/stress.py --full                       every MPI; 200 short jobs; a thousand rounds of each test under load
    tests/mpi/stress.py --mpi openmpi5 --part short --count 1000

Parts: `short`, jobs of 2 and 4 ranks that do nothing but begin, meet and end; `fence`, MPI_Win_fence and MPI_Accumulate, sums checked;
`mixed`, a random all-to-all of mixed sizes, every byte checked. `fence` and `mixed` run beside two endless loops. A job that does not end
is one that hangs: its stacks are in its log (target/mpi/logs).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Iterator

from bed import checks
from bed.checks import Outcome, Work
from bed.hosts import Unable, enter_cage
from bed.mpis import OURS, Mpi, all_mpis, provider_missing
from bed.scenes import SCENES, Scene, World, world_of

LIGHT_MPIS = ("mpich", "openmpi4")
LOOPS = 2
ENOUGH = 3
"""Failures of a part after which it is given up."""


@dataclass(frozen=True)
class Part:
    """What is done how often: `rounds` in each job, so many in all; some of a job's length."""

    test: str
    ranks: tuple[int, ...]
    rounds: int
    light: int
    full: int
    loaded: bool

    def jobs(self, count: int) -> Iterator[Work]:
        """The jobs that make up so many rounds."""
        left, number = count, 0
        while left > 0:
            # Every fourth job is a short one: beginning and ending are where jobs differ most.
            rounds = min(left, self.rounds if number % 4 else max(self.rounds // 20, 1))
            ranks = self.ranks[number % len(self.ranks)]
            words = {"short": ("brief",), "fence": ("fence", str(rounds)), "mixed": ("mixed", str(rounds), str(number + 1))}[self.test]
            yield Work(words, ranks)
            left, number = left - rounds, number + 1


PARTS = {part.test: part for part in (
    Part("short", (2, 4), 1, light=20, full=200, loaded=False),
    Part("fence", (4, 2, 3), 100, light=60, full=1000, loaded=True),
    Part("mixed", (4, 3, 2), 50, light=40, full=1000, loaded=True),
)}


def main() -> int:
    """Parses the command line, runs, and says what failed."""
    options = _parse()
    if why := provider_missing(options.provider, typed=True):
        print(f"skipped: {why}")
        return 0
    failed = 0
    try:
        enter_cage()
        scene = next(scene for scene in SCENES if scene.name == options.scene)
        with world_of(scene) as world:
            for mpi in all_mpis(typed=True):
                if mpi.name in options.mpi:
                    failed += sum(_run(world, scene, mpi, PARTS[name], options) for name in options.part)
    except Unable as why:
        print(f"skipped: {why}")
    return 1 if failed else 0


def _run(world: World, scene: Scene, mpi: Mpi, part: Part, options: argparse.Namespace) -> int:
    """Runs a part; how many of its jobs failed."""
    count = options.count or (part.full if options.full else part.light)
    began, done, failed = time.monotonic(), [], 0
    for work in part.jobs(count):
        with _load(part.loaded and not options.calm):
            outcome = checks.run(world, scene, mpi, part.test, options.provider, work)
        if outcome.result == "skipped":
            print(f"{mpi.name:<9} {part.test:<6} skipped: {outcome.reason}", flush=True)
            return 0
        done.append(outcome)
        if outcome.result == "FAILED":
            failed += 1
            print(f"{mpi.name:<9} {part.test:<6} FAILED   job {len(done)} ({' '.join(work.words)}, {work.ranks} ranks): {outcome.reason}", flush=True)
            if failed == ENOUGH:
                break
    print(f"{mpi.name:<9} {part.test:<6} {count} rounds in {len(done)} jobs, {failed} failed, {time.monotonic() - began:.0f} s, "
          f"{_spread(done)}", flush=True)
    return failed


def _spread(done: list[Outcome]) -> str:
    seconds = sorted(outcome.seconds for outcome in done)
    return f"a job {seconds[len(seconds) // 2]:.2f} s, the longest {seconds[-1]:.2f} s"


@contextmanager
def _load(wanted: bool) -> Iterator[None]:
    """Endless loops, as long as a job runs."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(LOOPS if wanted else 0)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = lambda text: tuple(text.split(","))
    parser.add_argument("--full", action="store_true", help="every MPI, as often as it should be once in a while")
    parser.add_argument("--mpi", type=names, help="only these")
    parser.add_argument("--part", type=names, default=tuple(PARTS), help="only these")
    parser.add_argument("--count", type=int, help="rounds of each part")
    parser.add_argument("--calm", action="store_true", help="no endless loops beside")
    parser.add_argument("--scene", default="one", help="on which hosts (one)")
    parser.add_argument("--provider", default=OURS, help="of libfabric (madrigal)")
    options = parser.parse_args()
    if unknown := [name for name in options.part if name not in PARTS]:
        parser.error(f"no such part: {', '.join(unknown)}")
    options.mpi = options.mpi or (tuple(mpi.name for mpi in all_mpis()) if options.full else LIGHT_MPIS)
    return options


if __name__ == "__main__":
    sys.exit(main())
