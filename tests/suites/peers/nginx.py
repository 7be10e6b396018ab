"""nginx's own tests of the server, by Perl."""

from __future__ import annotations

import re

from bed import parse as parsers
from bed.home import HOME, once, program, run
from bed.results import Ended, Results, Unit

LONG = True
SECONDS = 3600

FOLDER = HOME / "src" / "nginx-tests"
NGINX = HOME / "nginx" / "nginx"
ADDRESS = "https://github.com/nginx/nginx-tests"
QUICK = r"proxy|fastcgi|scgi|uwsgi|upstream|stream_|memcached|http_(keepalive|header|method|uri)|worker|tcp|range|body|autoindex|limit_rate|stub"


def setup() -> None:
    """nginx from Debian; its tests have no package, and come from where its authors keep them."""
    program("nginx", "nginx")
    program("prove", "perl")
    once(HOME / "src", "nginx-tests", lambda: None if FOLDER.exists() else _clone())
    once(HOME / "nginx", "script", _script)


def _clone() -> None:
    run(program("git", "git"), "clone", "--quiet", "--depth", "1", ADDRESS, FOLDER, seconds=120, environment={"GIT_TERMINAL_PROMPT": "0"})


def _script() -> None:
    """A start of nginx that does not tell of modules that lie in packages of their own: tests would load them."""
    NGINX.write_text(f"""#!/bin/sh
if [ "$*" = -V ]; then
    {program("nginx")} -V 2>&1 | sed 's/--with-[a-z_]*=dynamic//g' >&2
else
    exec {program("nginx")} "$@"
fi
""")
    NGINX.chmod(0o755)


def units(quick: bool) -> list[Unit]:
    """A file each."""
    # Its workers must be able to read what root has written.
    environment = {"TEST_NGINX_BINARY": str(NGINX), "TEST_NGINX_GLOBALS": "user root;"}
    return [Unit(path.stem, ("perl", path.name), FOLDER, environment, 90) for path in sorted(FOLDER.glob("*.t")) if not quick or re.match(QUICK, path.name)]


def parse(unit: Unit, ended: Ended) -> Results:
    """They speak TAP."""
    return parsers.tap(unit, ended)


def only(unit: Unit, cases: list[str]) -> Unit | None:
    """A file cannot be divided."""
    return unit
