"""Perl's own tests of IO::Socket, Socket, IO::Select, IO::Poll, HTTP::Tiny, Net::*, and of the interpreter's sockets and pipes."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from bed import parse as parsers
from bed.home import HOME, once, program, run, source
from bed.results import Ended, Results, Unit

LONG = False
SECONDS = 600

PARTS = ("dist/IO", "cpan/Socket", "cpan/IO-Socket-IP", "cpan/HTTP-Tiny", "cpan/libnet", "dist/Net-Ping", "ext/POSIX")
CORE = ("socket", "socketpair", "pipe", "dup", "fs", "eintr", "eintr_print", "perlio", "print", "read", "say", "openpid", "closepid", "errno", "iofile", "layers",
        "fflush", "open")
"""Of t/io."""
LEFT_OUT = r"4\d\d_ping|410_syn|5\d\d_ping|99pod"
"""What asks hosts outside, and documentation."""


def setup() -> None:
    """The tests from Debian's source of the very perl that is installed."""
    program("perl", "perl")
    folder = source("perl", "perl-base", (*(f"{part}/*" for part in PARTS), "t/*"))
    once(HOME / "perl", "core", lambda: _core(folder))


def _core(folder: Path) -> None:
    """A tree as the interpreter's own tests expect it, t/ beside lib/, with the libraries of the installed one."""
    home = HOME / "perl"
    shutil.rmtree(home, ignore_errors=True)
    (home / "t").mkdir(parents=True)
    (home / "lib").mkdir()
    for name in ("test.pl", "charset_tools.pl", "loc_tools.pl"):
        shutil.copy(folder / "t" / name, home / "t")
    shutil.copytree(folder / "t" / "io", home / "t" / "io")
    shutil.copytree(folder / "t" / "lib", home / "t" / "lib")
    (home / "t" / "perl").symlink_to(program("perl"))
    for place in run("perl", "-e", "print qq($_\n) for reverse @INC").split():
        if Path(place).is_dir():
            run("cp", "-rsf", f"{place}/.", home / "lib")


def units(quick: bool) -> list[Unit]:
    """A file each, in a copy of its tree: they leave files beside themselves."""
    folder = HOME / "src" / "perl"
    found = []
    for part in PARTS:
        place = Path(part).name
        for path in sorted((folder / part / "t").glob("*.t")):
            if re.match(LEFT_OUT, path.name):
                continue
            found.append(Unit(f"{place}/{path.stem}", ("perl", f"t/{path.name}"), Path(place), seconds=90, shell=f"cp -r {folder / part} {place}; cp -n {HOME}/perl/t/*.pl {place}/t"))
    for name in CORE:
        found.append(Unit(f"io/{name}", ("perl", f"io/{name}.t"), Path("t"), seconds=90, shell=f"cp -r {HOME / 'perl' / 't'} t && ln -s {HOME / 'perl' / 'lib'} lib"))
    return found


def parse(unit: Unit, ended: Ended) -> Results:
    """They speak TAP."""
    return parsers.tap(unit, ended)


def only(unit: Unit, cases: list[str]) -> Unit | None:
    """A file cannot be divided."""
    return unit
