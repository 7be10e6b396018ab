"""What can be combined, and which combinations are run."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from typing import Iterator

from bed.languages import FORKERS

ENDS = ("close", "linger0", "half", "kill")
BESIDE = ("none", "fork", "spawn")
SIDES = ("both", "client", "server")
MODES = ("plain", "default", "eager", "random")


@dataclass(frozen=True)
class Combination:
    """One run of a server and a client."""

    server: str
    client: str
    mode: str
    sides: str
    threads: int
    requests: int
    size: int
    end: str
    beside: str

    def title(self) -> str:
        """In the words of the command line."""
        pair = self.server if self.server == self.client else f"{self.server}:{self.client}"
        return f"{pair:<13} {self.mode:<7} {self.sides:<6} {self.threads:>3} x {self.requests:<4} {short(self.size):>5} {self.end:<7} {self.beside:<5}"

    def options(self) -> str:
        """To run just this again."""
        return (f"--languages {self.server}:{self.client} --modes {self.mode} --sides {self.sides} --threads {self.threads} "
                f"--requests {self.requests} --sizes {short(self.size)} --ends {self.end} --beside {self.beside}")

    def possible(self) -> str:
        """Why it cannot be run; empty when it can."""
        for side in (self.server, self.client):
            if self.beside == "fork" and side not in FORKERS:
                return f"{side} does not fork without a program"
        return ""


@dataclass(frozen=True)
class Choice:
    """What was asked for."""

    pairs: tuple[tuple[str, str], ...]
    modes: tuple[str, ...]
    sides: tuple[str, ...]
    threads: tuple[int, ...]
    requests: tuple[int, ...]
    sizes: tuple[int, ...]
    ends: tuple[str, ...]
    beside: tuple[str, ...]

    def all(self) -> Iterator[Combination]:
        """Everything with everything."""
        for pair, *rest in itertools.product(self.pairs, self.modes, self.sides, self.threads, self.requests, self.sizes, self.ends, self.beside):
            yield Combination(*pair, *rest)

    def drawn(self, lot: random.Random) -> Iterator[Combination]:
        """By lot, without end; what cannot be run is not drawn."""
        while True:
            rest = [lot.choice(of) for of in (self.modes, self.sides, self.threads, self.requests, self.sizes, self.ends, self.beside)]
            drawn = Combination(*lot.choice(self.pairs), *rest)
            if not drawn.possible():
                yield drawn


def size(text: str) -> int:
    """`400`, `20k`, `1m`."""
    unit = {"k": 1000, "m": 1000000}.get(text[-1:].lower())
    return int(text[:-1]) * unit if unit else int(text)


def short(number: int) -> str:
    """The other way round."""
    for unit, letter in ((1000000, "m"), (1000, "k")):
        if number and number % unit == 0:
            return f"{number // unit}{letter}"
    return str(number)
