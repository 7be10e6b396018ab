"""mio's own tests: sockets in edge-triggered event sets."""

from __future__ import annotations

import os
from pathlib import Path

from bed import cargo
from bed.cargo import only, parse
from bed.home import HOME, Unable
from bed.results import Unit

LONG = False
SECONDS = 300


def setup() -> None:
    """The crate comes without its tests: somebody must have built them, and put the test programs into one folder."""
    if not _folder().is_dir():
        raise Unable(f"no test programs in {_folder()}: build mio's tests by cargo, and say by MIO_BUILT in which folder the programs are")


def _folder() -> Path:
    return Path(os.environ.get("MIO_BUILT") or HOME / "mio")


def units(quick: bool) -> list[Unit]:
    """A test program each."""
    return cargo.programs(_folder(), 120)


__all__ = ["only", "parse"]
