#!/usr/bin/env python3
"""Runs unmodified MPIs over Madrigal's libfabric provider (or another), on hosts made of namespaces.

    tests/mpi/run.py                     what continuous integration runs
    tests/mpi/run.py --brief             some two minutes of that, as `make test` does
    tests/mpi/run.py --all               every MPI, scene and test
    tests/mpi/run.py --scene two --mpi mpich,openmpi4 --test ring,win
    tests/mpi/run.py --provider tcp --all --record     the baseline anew

Over our provider jobs are started as users do it, `madrigal exec -- mpirun ...`, unless --bare is given.
Needs tests/mpi/setup. What cannot run here is `skipped`, with the reason. Logs of failures: target/mpi/logs.
"""

from __future__ import annotations

import argparse
import sys

from bed import baseline, checks
from bed.hosts import Unable, enter_cage
from bed.mpis import OURS, all_mpis, provider_missing
from bed.scenes import SCENES, Scene, world_of

LIGHT_MPIS = ("mpich", "openmpi4")
LIGHT_SCENES = ("one", "two", "docker0", "firewall-in", "firewall-out", "blocked", "no-ptrace")
LIGHT_TESTS = ("ring", "storm", "mixed", "probe", "truncate", "colls", "allreduce", "win", "kill", "kill-fabric", "no-driver", "why", "jobs",
               "sockets", "early", "cut", "flood", "exports", "expired")
# Of those, what shows soonest that something is wrong.
BRIEF_SCENES = ("one", "two", "firewall-in")
BRIEF_TESTS = tuple(name for name in LIGHT_TESTS if name not in ("flood", "expired"))
# What takes seconds by its nature is not done everywhere.
LIGHT_ONLY = {"kill": ("one", "two"), "kill-fabric": ("one", "two"), "no-driver": ("two",), "why": ("two", "no-ptrace"), "jobs": ("one", "two"),
              "sockets": ("two",), "early": ("one",), "cut": ("two",), "flood": ("one",), "exports": ("two",), "expired": ("one",),
              "mixed": ("one", "two", "docker0", "firewall-in", "no-ptrace")}


def main() -> int:
    """Parses the command line, runs, and ends with a count."""
    options = _parse()
    if why := provider_missing(options.provider, typed=not options.bare):
        print(f"skipped: {why}")
        return 0
    try:
        enter_cage()
    except Unable as why:
        print(f"skipped: {why}")
        return 0
    if unknown := set(options.mpi or ()) - {mpi.name for mpi in all_mpis(typed=not options.bare)}:
        print(f"run.py: no MPI here is named {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    print(f"{'scene':<13} {'mpi':<9} {'test':<11} {'result':<8} {'time':>8}", flush=True)
    outcomes = []
    for scene in SCENES:
        if options.scene is None or scene.name in options.scene:
            outcomes += _run_scene(scene, options)
    return _conclude(outcomes, options)


def _run_scene(scene: Scene, options: argparse.Namespace) -> list[checks.Outcome]:
    outcomes = []
    names = [name for name in checks.tests_of(scene) if options.test is None or name in options.test]
    if options.light:
        names = [name for name in names if scene.name in LIGHT_ONLY.get(name, LIGHT_SCENES)]
    elif options.test and not names and not scene.blocked:
        names = [name for name in checks.TESTS if name in options.test]
    try:
        with world_of(scene) as world:
            for mpi in all_mpis(typed=not options.bare):
                if options.mpi and mpi.name not in options.mpi:
                    continue
                for name in names:
                    outcome = checks.run(world, scene, mpi, name, options.provider)
                    outcomes.append(outcome)
                    print(outcome.line(), flush=True)
                    hangs = scene.hard and outcome.reason.startswith("not done")
                    if hangs or outcome.result == "skipped" and outcome.reason == mpi.missing:
                        break
    except Unable as why:
        print(f"{scene.name:<13} skipped: {why}", flush=True)
    return outcomes


def _conclude(outcomes: list[checks.Outcome], options: argparse.Namespace) -> int:
    stock = baseline.read("tcp")
    failed = [outcome for outcome in outcomes if outcome.result == "FAILED"]
    worse = baseline.worse(stock, {outcome.key: outcome.result for outcome in outcomes})
    count = sum(outcome.result == "pass" for outcome in outcomes)
    print(f"\n{options.provider}: {count} passed, {len(failed)} failed ({len(worse)} of them do not with stock tcp), "
          f"{len(outcomes) - count - len(failed)} skipped")
    if options.record:
        baseline.record("tcp", {outcome.key: outcome.result for outcome in outcomes},
                        f"the stock provider `{options.provider}`: result, scene, MPI, test")
        return 0
    return 1 if (failed if options.provider == OURS else worse) else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = lambda text: tuple(text.split(","))
    parser.add_argument("--all", action="store_true", help="every MPI, scene and test")
    parser.add_argument("--brief", action="store_true", help="fewer scenes, and no test that takes a quarter of a minute")
    parser.add_argument("--mpi", type=names, help="only these")
    parser.add_argument("--scene", type=names, help="only these")
    parser.add_argument("--test", type=names, help="only these")
    parser.add_argument("--provider", default=OURS, help="of libfabric (madrigal)")
    parser.add_argument("--bare", action="store_true", help="choose our provider by variables, not by `madrigal exec`")
    parser.add_argument("--record", action="store_true", help="write the results to baseline/")
    options = parser.parse_args()
    options.light = not (options.all or options.mpi or options.scene or options.test)
    if options.light:
        options.mpi, options.scene, options.test = LIGHT_MPIS, LIGHT_SCENES, LIGHT_TESTS
    if options.light and options.brief:
        options.scene, options.test = BRIEF_SCENES, BRIEF_TESTS
    return options


if __name__ == "__main__":
    sys.exit(main())
