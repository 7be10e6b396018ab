"""libevent's own tests, with each of its ways to wait."""

from __future__ import annotations

import re
from dataclasses import replace

from bed.build import cmake
from bed.home import HOME, run
from bed.results import FAIL, OPEN, PASS, SKIP, Ended, Results, Unit, died

LONG = True
SECONDS = 1800

METHODS = {"epoll": {}, "poll": {"EVENT_NOEPOLL": "1"}, "select": {"EVENT_NOEPOLL": "1", "EVENT_NOPOLL": "1"},
           "epoll-changelist": {"EVENT_EPOLL_USE_CHANGELIST": "1"}}
GROUPS = r"(main|et|http|bufferevent|evbuffer|listener|dns|ssl|openssl|iocp|signal|rpc|thread)"


def setup() -> None:
    """From Debian's source package."""
    cmake("libevent", "libevent-2.1-7", "regress", "-DEVENT__DISABLE_OPENSSL=OFF", "-DEVENT__DISABLE_BENCHMARK=ON", "-DEVENT__DISABLE_SAMPLES=ON",
          "-DEVENT__LIBRARY_TYPE=STATIC", "-DCMAKE_POLICY_VERSION_MINIMUM=3.5")


def units(quick: bool) -> list[Unit]:
    """A group of tests each, in every way."""
    program = HOME / "build" / "libevent" / "bin" / "regress"
    names = [line.strip() for line in run(program, "--list-tests").splitlines()]
    groups = dict.fromkeys(found[1] for name in names if (found := re.match(rf"{GROUPS}/", name)))
    return [Unit(f"{method} {group}", (str(program), "--timeout", "60", f"{group}/.."), HOME / "build" / "libevent", environment, 300)
            for method, environment in METHODS.items() for group in groups]


def parse(unit: Unit, ended: Ended) -> Results:
    """A name, points, and OK, FAILED, SKIPPED, DISABLED."""
    results: Results = {}
    for line in (ended.out + "\n" + ended.err).splitlines():
        if found := re.match(r"([\w.]+/\S+): (.*)$", line):
            last = re.search(r"(OK|FAILED|SKIPPED|DISABLED)$", found[2].strip())
            results[f"{unit.name} {found[1]}"] = {"OK": PASS, "FAILED": FAIL, "SKIPPED": SKIP, "DISABLED": SKIP}[last[1]] if last else OPEN
        elif (found := re.match(r"\s*(?:\[(\S+) )?(OK|FAILED)\]?$", line)) and results and list(results.values())[-1] == OPEN:
            results[list(results)[-1]] = PASS if found[2] == "OK" else FAIL
    whole = OPEN if ended.code is None or died(ended.code) else PASS if ended.code in (0, 1) else FAIL
    return results | {f"{unit.name} (its end)": whole}


def only(unit: Unit, cases: list[str]) -> Unit | None:
    """It takes names."""
    names = [case.removeprefix(f"{unit.name} ") for case in cases if not case.endswith("(its end)")]
    return replace(unit, words=(*unit.words[:3], *names)) if names else None
