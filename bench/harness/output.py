"""The result file and the table."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Iterable

from harness import stats
from harness.measure import Result

COLUMNS = "{:<44} {:>14} {:>11} {:>11} {:>8} {:>7} {:>7} {:>6} {:>6} {:>5} {:>6}  {}"


def as_dict(result: Result) -> dict[str, object]:
    """One entry of the result file."""
    figure = result.figure
    return {
        "name": figure.name,
        "unit": figure.unit,
        "plain": median(result.plain),
        "madrigal": median(result.madrigal),
        "ratio": result.ratio,
        "worst": result.worst,
        "added": result.added if figure.absolute else None,
        "by_ring": result.by_ring,
        "target": figure.target,
        "goal": figure.goal,
        "floor": figure.floor,
        "absolute": figure.absolute,
        "lower_is_better": figure.lower_is_better,
        "passed": result.passed,
        "plain_cc": result.plain_cc,
        "runs": {"plain": result.plain, "madrigal": result.madrigal, "plain_trials": result.trials},
        "spread": {"plain": stats.spread(result.plain), "madrigal": stats.spread(result.madrigal)},
        "traffic": result.traffic,
        "others_cpus": result.others,
        "note": result.note,
    }


def write(path: Path, header: dict[str, object], results: Iterable[Result], skipped: dict[str, str]) -> None:
    """Writes the result file as a whole or not at all."""
    text = json.dumps({"header": header, "figures": [as_dict(r) for r in results], "skipped": skipped}, indent=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(text + "\n")
    fresh.replace(path)


def table(results: Iterable[Result]) -> str:
    """All results, a line for each."""
    head = COLUMNS.format("", "unit", "plain", "madrigal", "ratio", "worst", "target", "spread", "plain", "ring", "others", "")
    return "\n".join([head, *(line(result) for result in results)])


def line(result: Result) -> str:
    """One line of the table. `spread` is that of the Madrigal runs; `plain` after it names the congestion
    control; `others` is what other programs used of one CPU meanwhile."""
    figure = result.figure
    ring = {True: "ring", False: "tcp", None: "-"}[result.by_ring]
    value = f"{result.added:+.2f}" if figure.absolute else f"{result.ratio:.2f} x"
    worst = "" if figure.absolute else f"{result.worst:.2f}"
    target = f"<{figure.target:g}" if figure.absolute else f"{figure.target:g} x"
    note = f"{_verdict(result)} ({result.note})" if result.note else _verdict(result)
    return COLUMNS.format(figure.name, figure.unit, _short(median(result.plain)), _short(median(result.madrigal)), value, worst,
                          target, f"{100 * stats.spread(result.madrigal):.0f}%", result.plain_cc, ring, f"{100 * result.others:.0f}%", note).rstrip()


def _verdict(result: Result) -> str:
    figure = result.figure
    if not result.passed:
        low = figure.floor is not None and result.ratio >= figure.target
        return "SHORT (worst run)" if low else "SHORT"
    if figure.goal is not None:
        return "pass, goal" if result.ratio >= figure.goal else "pass"
    return "pass"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
