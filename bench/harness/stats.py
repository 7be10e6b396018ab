"""Medians, spreads and bootstrap bounds."""

from __future__ import annotations

import random
from statistics import median
from typing import Callable, Sequence


def spread(values: Sequence[float]) -> float:
    """Distance between the best and the worst run, as a part of their median."""
    middle = median(values)
    return (max(values) - min(values)) / middle if middle else 0.0


def ratio(plain: float, madrigal: float, lower_is_better: bool) -> float:
    """How many times better Madrigal is: above 1 is better, whatever the unit."""
    over, under = (plain, madrigal) if lower_is_better else (madrigal, plain)
    return over / under if under else float("inf")


def bounds(values: Sequence[float], level: float = 0.95, rounds: int = 4000,
           of: Callable[[Sequence[float]], float] = median) -> tuple[float, float]:
    """Two-sided bootstrap bounds of a statistic. Draws from a fixed seed: the same values give the same bounds."""
    draw = random.Random(1)
    found = sorted(of(draw.choices(values, k=len(values))) for _ in range(rounds))
    cut = int(rounds * (1 - level) / 2)
    return found[cut], found[rounds - 1 - cut]
