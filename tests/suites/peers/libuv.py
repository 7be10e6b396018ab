"""libuv's own tests."""

from __future__ import annotations

import re

from bed import parse as parsers
from bed.build import cmake
from bed.home import HOME, run
from bed.results import Ended, Results, Unit

LONG = True
SECONDS = 2400

WANTED = (r"^(tcp|pipe|poll|ipc|spawn|fork|shutdown|connect|getsockname|delayed_accept|multiple_listen|callback_stack|eintr|emfile|watcher_cross|close_"
          r"|read_|not_|ping_pong|tty|udp|listen|semaphore|loop_|socket_buffer|osx|signal|process|handle|embed|active|getaddrinfo|connection_fail|ip|idle)")
LEFT_OUT = {
    # It waits for a terminal.
    "tty", "tty_raw",
}


ENVIRONMENT = {"UV_RUN_AS_ROOT": "1", "UV_TEST_TIMEOUT_MULTIPLIER": "4"}


def setup() -> None:
    """From Debian's source package."""
    cmake("libuv1", "libuv1", "uv_run_tests", "-DBUILD_TESTING=ON")


def units(quick: bool) -> list[Unit]:
    """A test each, in a copy of what they read."""
    program = HOME / "build" / "libuv1" / "uv_run_tests"
    # A helper of a test stands below it, indented.
    names = [line for line in run(program, "--list", environment=ENVIRONMENT).splitlines() if re.match(r"\w+$", line)]
    return [Unit(name, (str(program), name), HOME / "src" / "libuv1", ENVIRONMENT, 120)
            for name in dict.fromkeys(names) if re.match(WANTED, name) and name not in LEFT_OUT]


def parse(unit: Unit, ended: Ended) -> Results:
    """A test is a program; 7 is its word for skipped."""
    return parsers.by_status(unit, ended, (7, 1) if "# SKIP" in ended.out else (7,))


def only(unit: Unit, cases: list[str]) -> Unit | None:
    """It cannot be divided."""
    return unit
