"""Runs the units of a suite, and runs again what needs a second look."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from bed import compare
from bed.cage import Cage
from bed.compare import Verdict
from bed.modes import Mode
from bed.results import CRASH, FAIL, HANG, LOST, PASS, Ended, Results, Unit, died, settle

ROUNDS = 25
"""How often the rest of a unit is begun again after a program died on the way."""
SILENCE = 200
"""Seconds without a word after which a plain unit is taken to hang."""
MOST_LOOKS = 40
"""How many cases of one unit get a second look; where more fail, the reason is likely one."""


class Suite(Protocol):
    """What a module in peers/ has."""

    LONG: bool
    """Too long for continuous integration: runs only when it is named, or with --long."""
    SECONDS: float
    """The watchdog of one run of all its units."""
    __doc__: str

    def setup(self) -> None:
        """Fetches and builds what is not there; raises `Unable` with the reason where that cannot be."""

    def units(self, quick: bool) -> list[Unit]:
        """Its commands."""

    def parse(self, unit: Unit, ended: Ended) -> Results:
        """What came of each case. A case that began and did not end is `OPEN`."""

    def only(self, unit: Unit, cases: list[str]) -> Unit | None:
        """The unit with these cases only; None where it cannot be divided."""


@dataclass
class Told:
    """What is known of one unit in one mode."""

    results: Results = field(default_factory=dict)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    seconds: float = 0
    gap: float = 0


class Runner:
    """Runs units of one suite in one mode after the other."""

    def __init__(self, suite: Suite, logs: Path, *, patience: float = 1, again: int = 3, kept: bool = False) -> None:
        self.suite, self.logs, self.patience, self.again, self.kept = suite, logs, patience, again, kept
        for old in logs.glob("*.log"):
            old.unlink()

    def plain(self, unit: Unit, mode: Mode) -> Told:
        """The measure of everything else."""
        began = time.monotonic()
        results, gap = self._all(unit, mode, unit.seconds * self.patience, min(unit.seconds, SILENCE) * self.patience, [])
        return Told(results, {}, time.monotonic() - began, gap)

    def wrapped(self, unit: Unit, mode: Mode, plain: Mode, before: Told, deadline: float) -> Told:
        """Runs a unit, the rest of it where it broke off, and again what passes plain only."""
        began = time.monotonic()
        wanted = [case for case, result in before.results.items() if result == PASS]
        results, _ = self._all(unit, mode, *self._limits(unit, before), wanted)
        told = Told(results, {}, time.monotonic() - began)
        bad = compare.lacking(before.results, results)
        for case in bad[:MOST_LOOKS]:
            late = time.monotonic() > deadline
            told.verdicts[case] = Verdict(compare.BROKEN, f"{results.get(case, LOST)}; no time for a second look") if late else \
                self._look_again(unit, mode, plain, before, case, results.get(case, LOST))
        for case in bad[MOST_LOOKS:]:
            told.verdicts[case] = Verdict(compare.BROKEN, f"{results.get(case, LOST)}; not run again, as so many fail")
        return told

    def _all(self, unit: Unit, mode: Mode, seconds: float, idle: float, wanted: list[str]) -> tuple[Results, float]:
        """Every case that is wanted, or that the unit itself says it has, in as many commands as it takes; and the longest silence."""
        results, ended = self._attempt(unit, mode, seconds, idle, unit.name)
        gap = ended.gap
        for number in range(1, ROUNDS):
            missing = [case for case in wanted or results if results.get(case, LOST) == LOST]
            rest = self.suite.only(unit, missing) if missing else None
            if rest is None:
                break
            more, ended = self._attempt(rest, mode, seconds, idle, f"{unit.name}.{number}")
            if all(more.get(case, LOST) == LOST for case in missing):
                # Not even one: the first of them keeps the others from running.
                more = {missing[0]: HANG if ended.code is None else CRASH if died(ended.code) else FAIL}
            # What was told first holds, and so what is told of the end of the program.
            results |= {case: result for case, result in more.items() if results.get(case, LOST) == LOST}
        return results, gap

    def _look_again(self, unit: Unit, mode: Mode, plain: Mode, before: Told, case: str, first: str) -> Verdict:
        """Alone, both ways in turn; then, when that is always right, once more among the others."""
        alone = self.suite.only(unit, [case])
        wrapped: list[str] = []
        base: list[str] = []
        seconds, idle = self._limits(unit, before)
        if alone is not None:
            while not compare.enough(first, wrapped, base, self.again):
                wrapped.append(self._one(alone, mode, seconds, idle, case))
                base.append(self._one(alone, plain, seconds, idle, case))
        if alone is None or (alone != unit and set(wrapped) | set(base) <= {PASS} and first != CRASH):
            for _ in range(2):
                wrapped.append(self._one(unit, mode, seconds, idle, case))
                base.append(self._one(unit, plain, seconds, idle, case))
                if compare.enough(first, wrapped, base, len(wrapped) + 1):
                    break
        return compare.judge(first, wrapped, base)

    def _one(self, unit: Unit, mode: Mode, seconds: float, idle: float, case: str) -> str:
        return self._attempt(unit, mode, seconds, idle, f"again.{case}")[0].get(case, LOST)

    def _limits(self, unit: Unit, before: Told) -> tuple[float, float]:
        """How long it may take wrapped: what it took plain is the measure, and machines are busy."""
        most = unit.seconds * self.patience
        return min(most, (30 + 6 * before.seconds) * self.patience), min(most, (30 + 5 * before.gap) * self.patience)

    def _attempt(self, unit: Unit, mode: Mode, seconds: float, idle: float, label: str) -> tuple[Results, Ended]:
        with Cage(self.kept) as cage:
            ended = cage.run(unit, mode.wrap, mode.environment, seconds, idle)
            results = settle(self.suite.parse(unit, ended), ended)
        if ended.code != 0 or set(results.values()) & {FAIL, HANG, CRASH}:
            self._log(mode, label, unit, ended)
        return results, ended

    def _log(self, mode: Mode, label: str, unit: Unit, ended: Ended) -> None:
        self.logs.mkdir(parents=True, exist_ok=True)
        name = re.sub(r"[^A-Za-z0-9_.-]+", "_", label)[:120]
        how = "ended by the watchdog" if ended.code is None else f"status {ended.code}"
        text = f"{' '.join(unit.words)[:2000]}\n{how} after {ended.seconds:.1f} s\n--- out\n{ended.out[-200000:]}\n--- err\n{ended.err[-200000:]}\n"
        (self.logs / f"{mode.name}.{name}.log").write_text(text + (f"--- stacks\n{ended.stacks}\n" if ended.stacks else ""))
