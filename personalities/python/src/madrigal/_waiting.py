"""Waiting in slices, so that Ctrl-C and other signals of Python's are seen: the interpreter runs their handlers between two calls."""

from __future__ import annotations

import time
from typing import Callable, Iterator, Optional

from ._library import FOREVER, opened
from .errors import failed

# Nanoseconds of one wait in the library.
SLICE = 100_000_000
TIMED_OUT = -10


def nanoseconds(seconds: Optional[float]) -> int:
    """A time for the library; None never passes, and what has passed is 0."""
    return FOREVER if seconds is None else max(0, int(seconds * 1e9))


def first(seconds: Optional[float]) -> int:
    """The first slice of a time."""
    return SLICE if seconds is None else min(SLICE, nanoseconds(seconds))


def rest(seconds: Optional[float]) -> Optional[float]:
    """What is left of a time behind its first slice; negative if nothing."""
    return None if seconds is None else seconds - SLICE / 1e9


def slices(seconds: Optional[float]) -> Iterator[tuple[int, bool]]:
    """Waits one after the other: how long each is, and whether it is the last."""
    if seconds is None:
        while True:
            yield SLICE, False
    left = nanoseconds(seconds)
    if left > SLICE:
        end = time.monotonic_ns() + left
        while (left := max(0, end - time.monotonic_ns())) > SLICE:
            yield SLICE, False
    yield left, True


def patiently(call: Callable[[int], int], seconds: Optional[float]) -> int:
    """Repeats a call that takes a time until it does not say that it has passed; what it returned, which is no error."""
    for wait, last in slices(seconds):
        code = call(wait)
        if code >= 0:
            return code
        if code != TIMED_OUT or last:
            failed(code)
    raise AssertionError("slices end with a last one")


def opened_patiently(function: Callable[..., int], of: int, arguments: tuple[object, ...], seconds: Optional[float]) -> int:
    """The handle that a call puts into its last argument, behind a time, once that has not passed."""
    for wait, last in slices(seconds):
        code, handle = opened(function, of, *arguments, wait)
        if code == 0:
            return handle
        if code != TIMED_OUT or last:
            failed(code)
    raise AssertionError("slices end with a last one")
