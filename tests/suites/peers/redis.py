"""Redis's own tests of its server, its replication and its tools, by Tcl."""

from __future__ import annotations

import re
from pathlib import Path

from bed.home import HOME, once, program, source
from bed.results import FAIL, OPEN, PASS, SKIP, Ended, Results, Unit, died

LONG = True
SECONDS = 3600

QUICK = ("unit/protocol", "unit/networking", "unit/pubsub", "unit/multi", "unit/wait", "unit/limits", "unit/querybuf", "integration/redis-cli",
         "integration/redis-benchmark", "integration/block-repl", "integration/replication-3")
MORE = ("unit/introspection", "unit/introspection-2", "unit/obuf-limits", "unit/tracking", "unit/scripting", "unit/functions", "unit/dump", "unit/shutdown",
        "unit/client-eviction", "unit/type/list", "unit/type/stream", "integration/replication", "integration/replication-2", "integration/replication-4",
        "integration/replication-buffer", "integration/replication-psync", "integration/psync2", "integration/failover")
SERVERS = ("redis-server", "redis-cli", "redis-benchmark", "redis-check-aof", "redis-check-rdb", "redis-sentinel")


def setup() -> None:
    """Redis from Debian, the tests from its source package."""
    program("tclsh", "tcl")
    program("redis-server", "redis-server")
    folder = source("redis", "redis-server", ("tests/*", "utils/*", "redis.conf"))

    def link() -> None:
        (folder / "src").mkdir(exist_ok=True)
        for name in SERVERS:
            (folder / "src" / name).unlink(missing_ok=True)
            (folder / "src" / name).symlink_to(program("redis-server" if name == "redis-sentinel" else name, "redis-tools"))

    once(HOME / "redis", "links", link)


def units(quick: bool) -> list[Unit]:
    """A file each, in a copy of all: servers leave files beside them."""
    copy = f"cp -r {HOME / 'src' / 'redis'} redis"
    return [Unit(name, ("tclsh", "tests/test_helper.tcl", "--clients", "1", "--timeout", "200", "--tags", "-slow", "--single", name), Path("redis"), seconds=400, shell=copy)
            for name in (QUICK if quick else QUICK + MORE)]


def parse(unit: Unit, ended: Ended) -> Results:
    """A line a case. Of those with the same name each counts."""
    results: Results = {}
    for line in re.sub(r"\x1b\[[0-9;]*m", "", ended.out).splitlines():
        if found := re.match(r"\[(ok|err|exception|skip|ignore|timeout)\]: (.*)$", line):
            # Behind the name stand the time, or the place in the file.
            name = re.sub(r" \(\d+ ms\)$| in tests/\S+\.tcl$", "", found[2])
            name = re.sub(r"0x[0-9a-f]+|\b\d{4,}\b", "N", name)
            seen = sum(1 for case in results if re.fullmatch(rf"{re.escape(f'{unit.name} {name}')}( #\d+)?", case))
            results[f"{unit.name} {name}" + (f" #{seen + 1}" if seen else "")] = PASS if found[1] == "ok" else SKIP if found[1] in ("skip", "ignore") else FAIL
    whole = OPEN if ended.code is None or died(ended.code) else PASS if ended.code == 0 else FAIL
    return results | {f"{unit.name} (its end)": whole}


def only(unit: Unit, cases: list[str]) -> Unit | None:
    """Cases build upon those before them: a file is run as a whole."""
    return unit
