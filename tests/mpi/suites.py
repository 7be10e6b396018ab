#!/usr/bin/env python3
"""Runs a suite that other people wrote over Madrigal's libfabric provider, and compares with what the stock provider passes.

    tests/mpi/suites.py mpi4py --mpi mpich
    tests/mpi/suites.py mpi4py --only 'p2p|rma' --scene two
    tests/mpi/suites.py arrays --mpi openmpi4
    tests/mpi/suites.py npb --mpi openmpi4 --built DIR          DIR/bin/*.S.x
    tests/mpi/suites.py mpich --mpi mpich --built DIR           DIR/pt2pt/testlist and so on, for instance from MPICH's release
    tests/mpi/suites.py fabtests --built DIR                    DIR/bin/runfabtests.sh
    ... --provider tcp --record                                 the baseline anew

mpi4py and Global Arrays come by tests/mpi/setup; the others must have been built by somebody, and stay where they are.
"""

from __future__ import annotations

import argparse
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
    name = options.suite if options.suite == "fabtests" else f"{options.suite}-{mpi.name}"
    stock, results, began = baseline.read(name), [], time.monotonic()
    scene = next(scene for scene in SCENES if scene.name == options.scene)
    with world_of(scene) as world:
        place = suites.Place(world, mpi, options.provider, tuple(host for host, _ in scene.blocks), options.built)
        for case, run in suites.ALL[options.suite](place, options.only):
            start = time.monotonic()
            result, why = run()
            results.append((case, result))
            against = f"   (stock: {stock[case]})" if stock.get(case, result) != result else ""
            print(f"{result:<8} {time.monotonic() - start:6.1f} s  {case}  {why}{against}", flush=True)
    count = {kind: sum(result == kind for _, result in results) for kind in ("pass", "FAILED", "skipped")}
    worse = [case for case, result in results if result == "FAILED" and stock.get(case) == "pass"]
    print(f"\n{name} over {options.provider}: {count['pass']} passed, {count['FAILED']} failed, {count['skipped']} skipped in "
          f"{time.monotonic() - began:.0f} s; stock passes {sum(result == 'pass' for result in stock.values())}; failed only here: {len(worse)}")
    for case in worse:
        print(f"    {case}")
    if options.record:
        baseline.record(name, results, f"{options.suite} over the stock provider `{options.provider}`: result, case")
    return 1 if worse or (count["FAILED"] and not stock) else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=list(suites.ALL))
    parser.add_argument("--mpi", default="mpich", choices=[mpi.name for mpi in all_mpis()])
    parser.add_argument("--scene", default="one", choices=[scene.name for scene in SCENES])
    parser.add_argument("--only", default="", metavar="REGEX", help="only cases whose name contains this")
    parser.add_argument("--provider", default=OURS, help="of libfabric (madrigal)")
    parser.add_argument("--built", type=lambda text: Path(text).resolve(), metavar="DIR", help="where the suite was built")
    parser.add_argument("--record", action="store_true", help="write the results to baseline/")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
