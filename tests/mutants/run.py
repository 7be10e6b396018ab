#!/usr/bin/env python3
"""Makes deliberate faults in Madrigal's core, one at a time, and runs the tests that are to find each.

    tests/mutants/run.py                      all of them: half an hour on two processors
    tests/mutants/run.py --only seal-ignored  one, by its name (several: --only a,b)
    tests/mutants/run.py --list               names, files, and what each would do to a program
    tests/mutants/run.py --check              whether each fault can still be made; builds nothing

The faults are in table.py. Each is made in a copy of the tree, which is kept, with what is built of it, in target/mutants. A fault is
caught when one of its tests fails, or hangs, that passes without it; the last line says how many were. Exit status: 0 all were caught,
1 some were not, 2 a fault is stale or does not build, or a test cannot run.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from bed.tree import ROOT, Busy, Mutant, Tree
from bed.trials import Bench, Unbuilt, Verdict
from table import MUTANTS


@dataclass
class Result:
    """What became of a fault."""

    mutant: Mutant
    # caught, survived, skipped, broken
    how: str = "survived"
    # Tests that failed, each with what it said.
    by: dict[str, str] = field(default_factory=dict)
    said: str = ""
    seconds: float = 0

    def line(self) -> str:
        told = {"caught": lambda: "; ".join(f"{test}: {said}" if said else test for test, said in self.by.items()),
                "survived": lambda: f"SURVIVED {', '.join(self.mutant.trials)}"}
        return f"{self.mutant.name:<28} {told.get(self.how, lambda: f'{self.how.upper()} {self.said}')()}"

    def as_json(self) -> dict[str, object]:
        return {"name": self.mutant.name, "file": self.mutant.file, "result": self.how, "caught_by": self.by, "said": self.said,
                "seconds": round(self.seconds, 1)}


def main() -> int:
    """Parses the command line, runs, ends with a count."""
    options = _parse()
    if options.list or options.check:
        return _show(options.mutants, options.check)
    try:
        tree = Tree(options.scratch)
    except Busy as why:
        print(f"run.py: {why}", file=sys.stderr)
        return 2
    # Whoever ends this ends what it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    tree.update()
    bench = Bench(tree.root, options.scratch)
    results = []
    for number, mutant in enumerate(options.mutants, 1):
        _tell(f"[{number}/{len(options.mutants)}] {mutant.name}: {mutant.why}")
        results.append(_try(tree, bench, mutant, options.all_tests))
        _tell(f"    {results[-1].how} in {results[-1].seconds:.0f} s {results[-1].said}")
        _write(results, options.json)
    _confirm(bench, results)
    _write(results, options.json)
    return _conclude(results)


def _try(tree: Tree, bench: Bench, mutant: Mutant, all_tests: bool) -> Result:
    """Makes one fault and runs its tests until one fails."""
    result, began = Result(mutant), time.monotonic()
    try:
        tree.make(mutant)
        skipped = []
        for trial in mutant.trials:
            verdict = bench.run(trial)
            _tell(f"    {trial}: {verdict.how} {verdict.said}")
            if verdict.how == "skipped":
                skipped.append(f"{trial}: {verdict.said}")
            if verdict.failed:
                result.how = "caught"
                result.by[trial] = verdict.said
                if not all_tests:
                    break
        if result.how == "survived" and len(skipped) == len(mutant.trials):
            result.how, result.said = "skipped", "; ".join(skipped)
    except (ValueError, Unbuilt) as why:
        result.how, result.said = "broken", str(why)
    finally:
        tree.mend(mutant)
    result.seconds = time.monotonic() - began
    return result


def _confirm(bench: Bench, results: list[Result]) -> None:
    """A test that fails without the fault, too, has caught nothing."""
    trials = dict.fromkeys(trial for result in results for trial in result.by)
    if trials:
        _tell(f"without a fault: {len(trials)} tests")
    for trial in trials:
        try:
            verdict = bench.run(trial)
        except Unbuilt as why:
            verdict = Verdict("failed", str(why))
        _tell(f"    {trial}: {verdict.how} {verdict.said}")
        if verdict.how == "passed":
            continue
        for result in results:
            if result.by.pop(trial, None) is not None and not result.by:
                result.how, result.said = "broken", f"{trial} {verdict.how} without it, too: {verdict.said}"


def _conclude(results: list[Result]) -> int:
    for result in results:
        print(result.line())
    caught, broken = (sum(result.how == how for result in results) for how in ("caught", "broken"))
    print(f"{caught} of {len(results)} caught")
    return 0 if caught == len(results) else 2 if broken else 1


def _show(mutants: list[Mutant], check: bool) -> int:
    stale = {mutant.name: why for mutant in mutants if (why := mutant.stale(ROOT) or _senseless(mutant))}
    for mutant in mutants:
        if not check:
            print(f"{mutant.name:<28} {mutant.file}\n    {mutant.why}\n    {'; '.join(mutant.trials)}")
        if mutant.name in stale:
            print(f"{mutant.name:<28} {stale[mutant.name]}")
    print(f"{len(mutants)} faults, {len(stale)} stale")
    return 2 if stale else 0


def _senseless(mutant: Mutant) -> str | None:
    """Which of its tests nobody can run, if any."""
    wrong = [trial for trial in mutant.trials if not Bench.makes_sense(trial)]
    return f"no such test: {', '.join(wrong)}" if wrong else None


def _tell(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text.rstrip()}", file=sys.stderr, flush=True)


def _write(results: list[Result], path: Path | None) -> None:
    if path:
        path.write_text(json.dumps([result.as_json() for result in results], indent=1) + "\n")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    named = {mutant.name: mutant for mutant in MUTANTS}

    def several(text: str) -> list[Mutant]:
        if unknown := [name for name in text.split(",") if name not in named]:
            raise argparse.ArgumentTypeError(f"no fault {', '.join(unknown)}: --list has them")
        return [named[name] for name in text.split(",")]

    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
    parser.add_argument("--only", dest="mutants", type=several, default=MUTANTS, metavar="NAME", help="these faults, by name, with commas between")
    parser.add_argument("--list", action="store_true", help="say what there is, and make none")
    parser.add_argument("--check", action="store_true", help="say which are stale, and make none")
    parser.add_argument("--all-tests", action="store_true", help="go on behind the first test that fails")
    parser.add_argument("--scratch", type=lambda text: Path(text).resolve(), default=target / "mutants", metavar="FOLDER",
                        help="where the copy is, and what is built of it")
    parser.add_argument("--json", type=lambda text: Path(text).resolve(), metavar="FILE", help="write every result there")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
