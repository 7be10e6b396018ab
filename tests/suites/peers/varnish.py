"""Varnish's own tests of its server, by varnishtest."""

from __future__ import annotations

import re

from bed import parse as parsers
from bed.home import program, source
from bed.results import Ended, Results, Unit

LONG = True
SECONDS = 3600

QUICK = r"b000|c000|t0200|o0000|h0000|s0000|e000"


def setup() -> None:
    """Varnish from Debian, the tests from its source package."""
    program("varnishtest", "varnish")
    source("varnish", "varnish", ("bin/varnishtest/tests/*",))


def units(quick: bool) -> list[Unit]:
    """A file each."""
    folder = source("varnish") / "bin" / "varnishtest" / "tests"
    return [Unit(path.stem, ("varnishtest", "-t", "40", str(path)), seconds=90) for path in sorted(folder.glob("*.vtc"))
            if not quick or re.match(QUICK, path.name)]


def parse(unit: Unit, ended: Ended) -> Results:
    """A test is a command; 77 is its word for skipped."""
    return parsers.by_status(unit, ended, (77,))


def only(unit: Unit, cases: list[str]) -> Unit | None:
    """It cannot be divided."""
    return unit
