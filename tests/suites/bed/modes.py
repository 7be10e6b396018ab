"""The ways a suite is run: plain, and wrapped so that more or less of its connections move."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

PLAIN = "plain"
NAMES = (PLAIN, "default", "eager", "random")


@dataclass(frozen=True)
class Mode:
    """One of them."""

    name: str
    wrap: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)


def mode(name: str, madrigal: Path, seed: int) -> Mode:
    """The mode of this name. In all wrapped ones the library checks itself as it goes.

    `eager` moves connections at their first send, so that short tests meet rings at all; `random` at a send drawn by lot, so that the
    switch comes at other places than the one the library would choose.
    """
    if name == PLAIN:
        return Mode(name)
    when = {"default": {}, "eager": {"MADRIGAL_EAGER": "first"}, "random": {"MADRIGAL_EAGER": f"random:{seed}"}}[name]
    return Mode(name, [str(madrigal), "exec", "--"], {"MADRIGAL_CHECK": "1", **when})
