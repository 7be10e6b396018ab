#!/usr/bin/env python3
"""Runs a suite that other people wrote over Madrigal's libfabric provider, and compares with what the stock provider passes.

    tests/mpi/suites.py mpi4py --mpi mpich
    tests/mpi/suites.py mpi4py --only 'p2p|rma' --scene two
    tests/mpi/suites.py arrays --mpi openmpi4
    tests/mpi/suites.py npb --mpi openmpi4 --built DIR          DIR/bin/*.S.x
    tests/mpi/suites.py mpich --mpi mpich --built DIR           DIR/pt2pt/testlist and so on, for instance from MPICH's release
    tests/mpi/suites.py fabtests --built DIR                    DIR/bin/runfabtests.sh
    ... --provider tcp --record                                 the baseline anew
    ... --patience 4                                            on a machine that is busy

mpi4py and Global Arrays come by tests/mpi/setup; the others must have been built by somebody, and stay where they are.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path

from bed import baseline, suites
from bed.hosts import Unable, enter_cage
from bed.mpis import OURS, all_mpis, provider_missing
from bed.scenes import SCENES, world_of


def main() -> int:
    """Parses the command line and runs one suite."""
    options = _parse()
    mpi = next(mpi for mpi in all_mpis() if mpi.name == options.mpi)
    why = provider_missing(options.provider) or (mpi.missing if options.suite != "fabtests" else "")
    try:
        if why:
            raise Unable(why)
        enter_cage()
        return _run(options, mpi)
    except Unable as unable:
        print(f"skipped: {unable}")
        return 0


def _run(options: argparse.Namespace, mpi: object) -> int:
    name, began = _baseline(options, mpi), time.monotonic()
    stock = baseline.read(name)
    results: dict[str, str] = {}
    ran = 0
    scene = next(scene for scene in SCENES if scene.name == options.scene)
    with world_of(scene) as world:
        place = suites.Place(world, mpi, options.provider, tuple(host for host, _ in scene.blocks), options.built, options.patience,
                             options.memory)
        for case, run in suites.ALL[options.suite](place, options.only):
            start = time.monotonic()
            result, why = run()
            tests, failed = _tests_of(why)
            ran += tests
            told = {case: result} | {f"{case}: {test}": "FAILED" for test in failed}
            results |= told
            against = f"   (stock: {stock[case]})" if stock.get(case, result) != result else ""
            print(f"{result:<8} {time.monotonic() - start:6.1f} s  {case}  {why}{against}", flush=True)
            if options.record:
                baseline.record(name, told, f"{options.suite} over the stock provider `{options.provider}`: result, case")
    about = f"{time.monotonic() - began:.0f} s" + (f", {ran} tests on each rank" if ran else "")
    return _sum_up(f"{name} over {options.provider}", stock, results, about)


def _sum_up(title: str, stock: dict[str, str], results: dict[str, str], about: str) -> int:
    count = {kind: sum(result == kind for case, result in results.items() if ": " not in case) for kind in ("pass", "FAILED", "skipped")}
    worse = baseline.worse(stock, results)
    of = [case for case in results if stock.get(case) == "pass"]
    print(f"\n{title}: {count['pass']} passed, {count['FAILED']} failed, {count['skipped']} skipped in {about}; "
          f"of these stock passes {len(of)}; failed only here: {len(worse)}")
    for case in worse:
        print(f"    {case}")
    return 1 if worse or (count["FAILED"] and not stock) else 0


def _baseline(options: argparse.Namespace, mpi: object) -> str:
    """Of what stock results are told: those of fabtests differ from one libfabric to the next, not from one MPI to the next."""
    if options.suite != "fabtests":
        return f"{options.suite}-{mpi.name}"
    newer = options.built and (options.built / "bin" / "fi_flood").exists()
    return "fabtests2" if newer else "fabtests"


def _tests_of(why: str) -> tuple[int, list[str]]:
    """How many tests a case says it is made of, and those that failed."""
    found = re.fullmatch(r"(\d+) tests(?:, of which failed: (.*))?", why)
    return (int(found[1]), found[2].split(", ") if found[2] else []) if found else (0, [])


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=list(suites.ALL))
    parser.add_argument("--mpi", default="mpich", choices=[mpi.name for mpi in all_mpis()])
    parser.add_argument("--scene", default="one", choices=[scene.name for scene in SCENES])
    parser.add_argument("--only", default="", metavar="REGEX", help="only cases whose name contains this")
    parser.add_argument("--provider", default=OURS, help="of libfabric (madrigal)")
    parser.add_argument("--built", type=lambda text: Path(text).resolve(), metavar="DIR", help="where the suite was built")
    parser.add_argument("--patience", type=float, default=1, metavar="TIMES", help="longer time limits, for both providers")
    parser.add_argument("--memory", type=float, default=4, metavar="GB", help="leave out tests that want more (4)")
    parser.add_argument("--record", action="store_true", help="write the results to baseline/")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
