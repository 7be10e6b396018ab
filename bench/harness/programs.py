"""Times whole commands plain and wrapped, in interleaved pairs, with a bootstrap bound on how much slower wrapping may make them."""

from __future__ import annotations

import os
import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Sequence

from harness import processes, stats
from harness.builds import OUT
from harness.measure import Plan

TARGET = 0.95


@dataclass
class Paired:
    """Wall times of one command."""

    name: str
    plain: list[float]
    madrigal: list[float]

    @property
    def ratios(self) -> list[float]:
        """Plain by Madrigal, pair by pair: above 1 is better."""
        return [plain / ours for plain, ours in zip(self.plain, self.madrigal)]

    @property
    def bound(self) -> tuple[float, float]:
        """95 % bounds of the median ratio."""
        return stats.bounds(self.ratios)

    @property
    def verdict(self) -> str:
        """`pass` or `SHORT` where the bounds are clear of the target, otherwise `unclear`."""
        low, high = self.bound
        return "pass" if low >= TARGET else "SHORT" if high < TARGET else "unclear"

    def as_dict(self) -> dict[str, object]:
        """One entry of the result file."""
        low, high = self.bound
        return {"name": self.name, "unit": "s", "plain": median(self.plain), "madrigal": median(self.madrigal),
                "ratio": median(self.ratios), "bound_95": [low, high], "target": TARGET, "verdict": self.verdict,
                "runs": {"plain": self.plain, "madrigal": self.madrigal}}

    def line(self) -> str:
        """One line of the table."""
        low, high = self.bound
        return (f"{self.name:<28} plain {median(self.plain):7.3f} s   madrigal {median(self.madrigal):7.3f} s   "
                f"{median(self.ratios):5.2f} x  [{low:.2f}, {high:.2f}]  {self.verdict}")


def pairs(name: str, command: Sequence[str], plan: Plan, count: int = 10, wrap_by_variable: bool = False) -> Paired:
    """Runs a command `count` times each way, turn about. Scripts wrap their own programs, named in the variable WRAP."""
    space = plan.spaces[0]

    def once(wrap: list[str]) -> float:
        env = dict(os.environ, SMOKE_CACHE=str(OUT / "programs"), TMPDIR=str(plan.scratch))
        env.pop("WRAP", None)
        if wrap_by_variable and wrap:
            env["WRAP"] = shlex.join(wrap)
        head = [] if wrap_by_variable else wrap
        start = time.monotonic()
        processes.run([*space.enter, *head, *command], 180, env=env)
        return time.monotonic() - start

    found = Paired(name, [], [])
    once([])
    for turn in range(count):
        order = [(found.plain, []), (found.madrigal, plan.wrap)]
        for values, wrap in order if turn % 2 == 0 else reversed(order):
            values.append(once(wrap))
    return found


def scripts(folder: Path) -> list[Path]:
    """The scripts of a folder, in order."""
    return sorted(folder.glob("*.sh"))
