"""memcached's own tests of its server, by Perl."""

from __future__ import annotations

from pathlib import Path

from bed import parse as parsers
from bed.home import HOME, once, program, run, source
from bed.results import Ended, Results, Unit

LONG = True
SECONDS = 1800

LEFT_OUT = ("startfile", "whitespace", "00-startup", "unixsocket")
"""What looks at sources, or at the user it runs as."""
SLOW = ("lru-crawler", "slabs-reassign-chunked", "slabs_reassign2", "slabs-reassign2", "chunked-extstore", "extstore", "extstore-buckets", "extstore-jbod",
        "misbehave", "lru-maintainer", "large-extstore", "restart", "stress-memcached", "issue_67", "dyn-maxbytes", "chunked-items")


def setup() -> None:
    """memcached from Debian, the tests from its source package."""
    program("memcached", "memcached")
    program("perl", "perl")
    folder = source("memcached", "memcached", ("t/*", "timedrun.c", "scripts/*"))

    def build() -> None:
        run(program("cc", "gcc"), "-o", folder / "timedrun", folder / "timedrun.c")
        for name in ("memcached", "memcached-debug"):
            (folder / name).unlink(missing_ok=True)
            (folder / name).symlink_to(program("memcached"))

    once(HOME / "memcached", "built", build)


def units(quick: bool) -> list[Unit]:
    """A file each, in a copy."""
    source_folder = HOME / "src" / "memcached"
    # A memcached that was built without a sandbox does not know this option, which the tests give it for root.
    copy = f"cp -r {source_folder} memcached && sed -i 's/ -o relaxed_privileges//' memcached/t/lib/MemcachedTest.pm"
    return [Unit(path.stem, ("perl", "-I", "t/lib", f"t/{path.name}"), Path("memcached"), seconds=120, shell=copy)
            for path in sorted((source_folder / "t").glob("*.t")) if path.stem not in LEFT_OUT and not (quick and path.stem in SLOW)]


def parse(unit: Unit, ended: Ended) -> Results:
    """They speak TAP."""
    return parsers.tap(unit, ended)


def only(unit: Unit, cases: list[str]) -> Unit | None:
    """A file cannot be divided."""
    return unit
