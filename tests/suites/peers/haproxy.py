"""HAProxy's own tests, by varnishtest."""

from __future__ import annotations

from bed import parse as parsers
from bed.home import program, source
from bed.results import Ended, Results, Unit

LONG = True
SECONDS = 3600

QUICK = ("connection", "http-messaging", "stream", "server", "webstats", "balance")


def setup() -> None:
    """HAProxy and varnishtest from Debian, the tests from HAProxy's source package."""
    program("varnishtest", "varnish")
    program("haproxy", "haproxy")
    source("haproxy", "haproxy", ("reg-tests/*",))


def units(quick: bool) -> list[Unit]:
    """A file each."""
    folder = source("haproxy") / "reg-tests"
    environment = {"HAPROXY_PROGRAM": program("haproxy"), "HAPROXY_TEST_TIMEOUT": "20000"}
    return [Unit(f"{path.parent.name}/{path.stem}", ("varnishtest", "-t", "40", path.name), path.parent, environment, 90)
            for path in sorted(folder.glob("*/*.vtc")) if not quick or path.parent.name in QUICK]


def parse(unit: Unit, ended: Ended) -> Results:
    """A test is a command; 77 is its word for skipped."""
    return parsers.by_status(unit, ended, (77,))


def only(unit: Unit, cases: list[str]) -> Unit | None:
    """It cannot be divided."""
    return unit
