"""What came of a case, and what a unit of a suite is."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

PASS, FAIL, SKIP = "pass", "fail", "skip"
OPEN = "open"
"""The case began, and nothing says how it ended."""
CRASH, HANG, LOST = "crash", "hang", "lost"
"""What an open case becomes: its program died of a signal, or did not end in time; `lost` is a case that was never begun, since the
program that was to run it ended before."""

Results = dict[str, str]
"""Cases in the order they ran, and what came of each."""


@dataclass(frozen=True)
class Unit:
    """One command of a suite; it runs one case or many."""

    name: str
    words: tuple[str, ...]
    folder: Path | None = None
    """Where it starts; one that is not absolute is below the private /tmp."""
    environment: dict[str, str] = field(default_factory=dict)
    seconds: float = 120
    """The longest it may take, plain, on a machine that is busy."""
    shell: str = ""
    """A line for sh(1) to run before in the private /tmp, never wrapped: to copy what must be writable."""

    def with_words(self, *words: str) -> "Unit":
        """The same with more words at its end."""
        return replace(self, words=(*self.words, *words))


@dataclass(frozen=True)
class Ended:
    """What a command left."""

    code: int | None
    """Its status, less than 0 for a signal, None when the watchdog ended it."""
    out: str = ""
    err: str = ""
    seconds: float = 0
    gap: float = 0
    """The longest time in which it wrote nothing."""
    tmp: Path | None = None
    """What was its /tmp, as long as `parse` runs."""
    stacks: str = ""
    """Where its processes stood when the watchdog ended it."""

    def file(self, name: str) -> str:
        """A file it left in its /tmp."""
        try:
            return (self.tmp / name).read_text(errors="replace") if self.tmp else ""
        except OSError:
            return ""


def settle(results: Results, ended: Ended) -> Results:
    """Says of open cases how their program ended."""
    last = HANG if ended.code is None else CRASH if died(ended.code) else FAIL
    return {case: last if result == OPEN else result for case, result in results.items()}


def died(code: int | None) -> bool:
    """Whether a status tells of a signal that programs do not send to themselves in order to end. Shells add 128."""
    return code is not None and (code if code < 0 else 128 - code) in (-4, -5, -6, -7, -8, -11, -31)
