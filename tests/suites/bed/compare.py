"""Compares what passes plain with what passes wrapped. The rules are here and nowhere else, since a wrong one hides faults."""

from __future__ import annotations

from dataclasses import dataclass

from bed.results import CRASH, HANG, PASS, SKIP, Results

BROKEN, FLAKY, ONCE = "broken", "flaky", "once"


@dataclass(frozen=True)
class Verdict:
    """What a case that passes plain and did not pass wrapped is taken for, and what that rests on."""

    kind: str
    note: str


def lacking(plain: Results, wrapped: Results) -> list[str]:
    """The cases that pass plain and do not pass wrapped, in the order they ran. One that is suddenly skipped lacks, too."""
    return [case for case, result in plain.items() if result == PASS and wrapped.get(case) != PASS]


def judge(first: str, wrapped: list[str], plain: list[str]) -> Verdict:
    """`first` is what the case did wrapped, beside it what it did when it was run again, both ways.

    * Not passing plain, even once: flaky; but what died of a signal only under the wrapper is broken however the rest looks.
    * Not passing wrapped a second time, or a death by a signal: broken.
    * Neither: once. Nobody can tell a seldom fault from a busy machine by that; it is named, and does not fail the run by itself.
    """
    note = _count("wrapped", [first, *wrapped]) + ", " + _count("plain", [PASS, *plain])
    if CRASH in (first, *wrapped) and CRASH not in plain:
        return Verdict(BROKEN, note)
    if any(result != PASS for result in plain):
        return Verdict(FLAKY, note)
    return Verdict(BROKEN if any(result != PASS for result in wrapped) else ONCE, note)


def enough(first: str, wrapped: list[str], plain: list[str], most: int) -> bool:
    """Whether running a case again, wrapped and plain in turn, would change nothing."""
    if len(wrapped) >= most or any(result != PASS for result in plain):
        return True
    bad = [first, *wrapped].count
    seen = len(wrapped) + 1 - bad(PASS)
    return seen >= (2 if bad(HANG) or bad(CRASH) else 3) and len(plain) >= 1


@dataclass
class Counts:
    """One line of the table."""

    passed: int = 0
    failed_as_plain: int = 0
    better: int = 0
    """Fails plain and passes wrapped."""
    skipped: int = 0
    broken: int = 0
    flaky: int = 0
    once: int = 0


def count(plain: Results, wrapped: Results, verdicts: dict[str, Verdict]) -> Counts:
    """Counts. Cases that only the wrapped run has are not compared with anything, and count as what they are."""
    told = Counts()
    for case in dict.fromkeys([*plain, *wrapped]):
        before, after = plain.get(case), wrapped.get(case)
        if case in verdicts:
            setattr(told, verdicts[case].kind, getattr(told, verdicts[case].kind) + 1)
        elif after == PASS:
            told.passed += 1
            told.better += before not in (PASS, None)
        elif SKIP in (before, after):
            told.skipped += 1
        else:
            told.failed_as_plain += 1
    return told


def _count(how: str, results: list[str]) -> str:
    bad = [result for result in results if result != PASS]
    kinds = " ".join(sorted(set(bad)))
    return f"{how} {len(bad)} of {len(results)}" + (f" ({kinds})" if bad else "")
