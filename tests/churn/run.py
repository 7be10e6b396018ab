#!/usr/bin/env python3
"""Opens and ends connections without pause, under Madrigal, with every byte checked.

    tests/churn/run.py                                     each language once, in every mode: some minutes
    tests/churn/run.py --languages c,python:java --threads 2,200 --ends half,kill      everything named with everything named
    tests/churn/run.py --total 3600                        combinations drawn by lot, for an hour; --seed repeats them
    tests/churn/run.py --modes plain                       without Madrigal: what must always be right

A pair such as python:java is a server and a client. Exit status 1 when a byte is wrong, a receive waits 20 s, something fails that
should not, a program dies or does not end, or memory goes on growing. A language that is missing is `skipped`, with the reason.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import time
from pathlib import Path
from typing import Iterator

from bed import cage
from bed.combinations import BESIDE, ENDS, MODES, SIDES, Choice, Combination, size
from bed.languages import BUILT, LANGUAGES, ROOT, Missing, command
from bed.running import Outcome, Runner


def main() -> int:
    """Parses the command line, runs, ends with a count."""
    options = _parse()
    try:
        cage.enter()
    except cage.Unable as why:
        print(f"skipped: {why}")
        return 0
    if not options.madrigal.exists() and options.modes != ("plain",):
        print(f"skipped: no {options.madrigal}: make build")
        return 0
    choice = _choice(options)
    if not choice.pairs:
        return 0
    print(f"madrigal {options.madrigal}, seed {options.seed}, {options.seconds} s each")
    print("server:client mode    sides  threads x requests, size, end, beside    connections, bytes, result, "
          "memory in MiB as own peak/final + rings peak/final", flush=True)
    results: list[tuple[Combination, Outcome]] = []
    runner = Runner(options.madrigal, options.seconds, options.seed, BUILT / "logs")
    for what in _wanted(choice, options):
        if why := what.possible():
            print(f"{what.title()}  skipped: {why}", flush=True)
            continue
        outcome = runner.run(what)
        results.append((what, outcome))
        print(f"{what.title()} {outcome.text()}", flush=True)
        _write(results, options)
    return _conclude(results)


def _wanted(choice: Choice, options: argparse.Namespace) -> Iterator[Combination]:
    if options.total is None:
        yield from choice.all()
        return
    deadline = time.monotonic() + options.total
    for what in choice.drawn(random.Random(options.seed)):
        if time.monotonic() > deadline:
            return
        yield what


def _choice(options: argparse.Namespace) -> Choice:
    """What was asked for; of what was not, one of each, or with --total everything."""
    wide = options.total is not None
    pairs = tuple(pair for pair in options.languages or (itertools.product(LANGUAGES, LANGUAGES) if wide else zip(LANGUAGES, LANGUAGES)))
    missing = {}
    for language in dict.fromkeys(itertools.chain(*pairs)):
        try:
            command(language)
        except Missing as why:
            missing[language] = why
            print(f"{language}: skipped: {why}")
    return Choice(tuple(pair for pair in pairs if not set(pair) & set(missing)), options.modes, options.sides,
                  options.threads or ((2, 20, 200) if wide else (20,)), options.requests or ((20, 60, 1000) if wide else (60,)),
                  options.sizes or ((400, 20000, 1000000) if wide else (20000,)), options.ends or (ENDS if wide else ("close",)),
                  options.beside or (BESIDE if wide else ("none",)))


def _write(results: list[tuple[Combination, Outcome]], options: argparse.Namespace) -> None:
    if options.json:
        told = [{**vars(what), **outcome.as_json()} for what, outcome in results]
        options.json.write_text(json.dumps({"madrigal": str(options.madrigal), "seed": options.seed, "results": told}, indent=1) + "\n")


def _conclude(results: list[tuple[Combination, Outcome]]) -> int:
    bad = [(what, outcome) for what, outcome in results if not outcome.good]
    connections, count = sum(outcome.connections for _, outcome in results), sum(outcome.bytes for _, outcome in results)
    print(f"\n{len(results)} runs, {connections} connections, {count / 1e9:.1f} GB: {len(results) - len(bad)} good, {len(bad)} FAILED")
    for what, outcome in bad:
        print(f"    {what.options()}")
        for line in outcome.said[:3]:
            print(f"        {line[:200]}")
    if bad:
        print(f"logs: {BUILT / 'logs'}")
    return 1 if bad else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)

    def several(known: tuple[str, ...]) -> object:
        def parse(text: str) -> tuple[str, ...]:
            if unknown := [word for word in text.split(",") if word not in known]:
                raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: there are {', '.join(known)}")
            return tuple(text.split(","))
        return parse

    def pairs(text: str) -> tuple[tuple[str, str], ...]:
        found = tuple(tuple((word if ":" in word else f"{word}:{word}").split(":")) for word in text.split(","))
        if unknown := {name for pair in found for name in pair} - set(LANGUAGES):
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: there are {', '.join(LANGUAGES)}")
        return found

    numbers = lambda text: tuple(int(word) for word in text.split(","))
    parser.add_argument("--languages", type=pairs, metavar="LIST", help=f"of {','.join(LANGUAGES)}, or pairs such as python:java")
    parser.add_argument("--threads", type=numbers, metavar="LIST", help="connections at once: 2,20,200")
    parser.add_argument("--requests", type=numbers, metavar="LIST", help="on one connection: 20,60,1000")
    parser.add_argument("--sizes", type=lambda text: tuple(size(word) for word in text.split(",")), metavar="LIST", help="most bytes of one: 400,20k,1m")
    parser.add_argument("--ends", type=several(ENDS), metavar="LIST", help=f"of {','.join(ENDS)}")
    parser.add_argument("--beside", type=several(BESIDE), metavar="LIST", help=f"what a thread beside does: {','.join(BESIDE)}")
    parser.add_argument("--sides", type=several(SIDES), default=("both",), metavar="LIST", help="which are wrapped: both,client,server (both)")
    parser.add_argument("--modes", type=several(MODES), default=MODES[1:], metavar="LIST", help=f"of {','.join(MODES)} (all wrapped ones)")
    parser.add_argument("--seconds", type=int, default=6, metavar="D", help="of each combination (6)")
    parser.add_argument("--total", type=float, metavar="SECONDS", help="draw combinations by lot for so long")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31), help="of what is drawn")
    parser.add_argument("--madrigal", type=lambda text: Path(text).resolve(), default=ROOT / "target" / "release" / "madrigal", metavar="PATH")
    parser.add_argument("--json", type=lambda text: Path(text).resolve(), metavar="FILE", help="write every result there")
    options = parser.parse_args()
    if "--seed" not in sys.argv and not any(word.startswith("--seed=") for word in sys.argv):
        # This program runs itself again inside of its namespaces.
        sys.argv += ["--seed", str(options.seed)]
    return options


if __name__ == "__main__":
    sys.exit(main())
