#!/usr/bin/env python3
"""Runs test suites that other people wrote, plain and under `madrigal exec`, and compares them case by case.

    tests/suites/run.py                         every short suite, in every mode
    tests/suites/run.py --quick --modes plain,random
    tests/suites/run.py cpython ltp --modes default
    tests/suites/run.py curl                    a long one, by its name; --long for all of them, or MADRIGAL_PEERS=curl,redis
    tests/suites/run.py cpython --only test_ssl     units whose name contains this

A case that passes plain must pass wrapped. What does not is run again alone, both ways: what then fails plain, too, is flaky. Exit
status 1 when something is broken only wrapped. What a suite needs is fetched by its setup, into /opt/suites or $MADRIGAL_SUITES; where
that cannot be, the suite is `skipped` and the reason is given. Logs of what failed: logs/ there.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import random
import re
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import peers
from bed import cage, modes
from bed.home import HOME, ROOT, Unable
from bed.modes import PLAIN, Mode
from bed.results import PASS, Unit
from bed.running import Runner, Suite, Told
from bed.table import HEAD, Line, failed


def main() -> int:
    """Parses the command line, runs, prints the table."""
    options = _parse()
    suites = {name: importlib.import_module(f"peers.{name}") for name in sorted(_names())}
    if options.list:
        for name, suite in suites.items():
            print(f"{name:<11} {'long' if suite.LONG else 'short':<6} {(suite.__doc__ or '').strip().splitlines()[0]}")
        return 0
    if unknown := [name for name in options.names if name not in suites]:
        print(f"no suite {', '.join(unknown)}: there are {', '.join(suites)}", file=sys.stderr)
        return 2
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, cage.give_up)
    print(f"madrigal {options.madrigal}, seed {options.seed}, jobs {options.jobs}, modes {','.join(options.modes)}", flush=True)
    lines: list[Line] = []
    for name, suite in suites.items():
        if name in options.names or (not options.names and (options.long or not suite.LONG)):
            lines += _run_suite(name, suite, options)
            _write(lines, options)
    return _conclude(lines, options)


def _run_suite(name: str, suite: Suite, options: argparse.Namespace) -> list[Line]:
    try:
        cage.check()
        if not options.madrigal.exists() and options.modes != [PLAIN]:
            raise Unable(f"no {options.madrigal}: make build")
        print(f"\n{name}: setup", flush=True)
        suite.setup()
        units = [unit for unit in suite.units(options.quick) if re.search(options.only, unit.name)]
        if not units:
            raise Unable("no unit of it is wanted")
    except Unable as why:
        print(f"{name}: skipped: {why}", flush=True)
        return [Line(name, mode, reason=str(why)) for mode in options.modes]
    runner = Runner(suite, HOME / "logs" / name, patience=options.patience, again=options.again, kept=options.keep)
    plain_mode = modes.mode(PLAIN, options.madrigal, options.seed)
    with ThreadPoolExecutor(options.jobs) as pool:
        line, measure = _run_plain(name, suite, units, runner, plain_mode, pool, options)
        lines = [line] if PLAIN in options.modes else []
        for mode_name in options.modes:
            if mode_name != PLAIN:
                mode = modes.mode(mode_name, options.madrigal, options.seed)
                lines.append(_run_mode(name, suite, units, runner, plain_mode, mode, measure, pool, options))
    return lines


def _run_plain(name: str, suite: Suite, units: list[Unit], runner: Runner, mode: Mode, pool: ThreadPoolExecutor,
               options: argparse.Namespace) -> tuple[Line, dict[str, Told]]:
    began = time.monotonic()
    deadline = began + suite.SECONDS * options.patience
    line, measure = Line(name, PLAIN), {}

    def one(unit: Unit) -> None:
        if time.monotonic() > deadline:
            line.late += 1
            return
        measure[unit.name] = told = runner.plain(unit, mode)
        _progress(name, PLAIN, unit, told)

    list(pool.map(one, units))
    for unit in units:
        line.results |= measure[unit.name].results if unit.name in measure else {}
    line.plain, line.seconds = line.results, time.monotonic() - began
    return line, measure


def _run_mode(name: str, suite: Suite, units: list[Unit], runner: Runner, plain: Mode, mode: Mode, measure: dict[str, Told],
              pool: ThreadPoolExecutor, options: argparse.Namespace) -> Line:
    began = time.monotonic()
    deadline = began + 2 * suite.SECONDS * options.patience
    line = Line(name, mode.name)

    def one(unit: Unit) -> None:
        before = measure.get(unit.name)
        if before is None or PASS not in before.results.values():
            return
        if time.monotonic() > deadline:
            line.late += 1
            return
        told = runner.wrapped(unit, mode, plain, before, deadline)
        _progress(name, mode.name, unit, told)
        line.plain |= before.results
        line.results |= told.results
        line.verdicts |= told.verdicts

    list(pool.map(one, units))
    line.seconds = time.monotonic() - began
    return line


def _progress(name: str, mode: str, unit: Unit, told: Told) -> None:
    counts: dict[str, int] = {}
    for result in told.results.values():
        counts[result] = counts.get(result, 0) + 1
    bad = "".join(f"\n    {verdict.kind:<7} {case}   {verdict.note}" for case, verdict in told.verdicts.items())
    summary = ", ".join(f"{count} {result}" for result, count in sorted(counts.items(), key=lambda item: item[0] != PASS)) or "nothing"
    print(f"{name:<11} {mode:<8} {unit.name:<44} {told.seconds:>6.1f} s  {summary}{bad}", flush=True)


def _conclude(lines: list[Line], options: argparse.Namespace) -> int:
    print(f"\n{HEAD}")
    for line in lines:
        print(line.text())
    for line in lines:
        if line.verdicts:
            print(f"\n{line.suite}, {line.mode}:\n{line.details()}", end="")
    print(f"\nlogs: {HOME / 'logs'}; seed {options.seed}")
    return 1 if failed(lines, options.strict) else 0


def _write(lines: list[Line], options: argparse.Namespace) -> None:
    """After each suite, so that a run that is ended has told what it knew."""
    if options.json:
        told = {"madrigal": str(options.madrigal), "seed": options.seed, "lines": [line.as_json() for line in lines]}
        options.json.write_text(json.dumps(told, indent=1) + "\n")


def _names() -> list[str]:
    """The modules of peers/ that are suites; helpers that run inside of a suite are named after it."""
    names = [module.name for module in pkgutil.iter_modules(peers.__path__)]
    return [name for name in names if not any(name != other and name.startswith(f"{other}_") for other in names)]


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="suites (all short ones)")
    parser.add_argument("--modes", default=",".join(modes.NAMES), help=f"of {','.join(modes.NAMES)}")
    parser.add_argument("--madrigal", type=lambda text: Path(text).resolve(), default=ROOT / "target" / "release" / "madrigal", metavar="PATH")
    parser.add_argument("--list", action="store_true", help="say which suites there are")
    parser.add_argument("--long", action="store_true", help="also the suites that are too long for continuous integration")
    parser.add_argument("--quick", action="store_true", help="of each suite the part that matters most")
    parser.add_argument("--only", default="", metavar="REGEX", help="only units whose name contains this")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every result there")
    parser.add_argument("--jobs", type=int, default=2, help="units at a time (2)")
    parser.add_argument("--again", type=int, default=4, metavar="N", help="run a case that fails up to so many times again, both ways (4)")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31), help="of the mode `random`")
    parser.add_argument("--patience", type=float, default=1, metavar="TIMES", help="longer time limits")
    parser.add_argument("--strict", action="store_true", help="fail also for what failed once and never again")
    parser.add_argument("--keep", action="store_true", help="keep the scratch folders below /tmp")
    options = parser.parse_args()
    options.modes = options.modes.split(",")
    if unknown := [mode for mode in options.modes if mode not in modes.NAMES]:
        parser.error(f"no mode {', '.join(unknown)}: there are {', '.join(modes.NAMES)}")
    options.names += [name for name in os.environ.get("MADRIGAL_PEERS", "").split(",") if name and name not in options.names]
    return options


if __name__ == "__main__":
    sys.exit(main())
