"""CPython's own tests of sockets, event loops, TLS, its network clients and servers, processes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from bed import parse as parsers
from bed.home import HOME, Unable, packages, run, source
from bed.results import OPEN, PASS, Ended, Results, Unit, died

LONG = False
SECONDS = 2400

QUICK = ("test_socket", "test_select", "test_epoll", "test_socketserver", "test_httplib", "test_httpservers", "test_ftplib", "test_smtplib",
         "test_telnetlib", "test_urllib2_localnet", "test_asyncore", "test_asynchat", "test_fork1")
MORE = ("test_ssl", "test_poll", "test_selectors", "test_poplib", "test_imaplib", "test_xmlrpc",
        "test_multiprocessing_fork", "test_multiprocessing_spawn", "test_multiprocessing_forkserver", "test_multiprocessing_main_handling",
        "test_concurrent_futures", "test_logging", "test_smtpd", "test_nntplib", "test_docxmlrpc", "test_urllib", "test_urllib2", "test_robotparser",
        "test_wsgiref", "test_signal", "test_eintr", "test_subprocess", "test_os", "test_posix", "test_fcntl", "test_pty", "test_wait3", "test_wait4",
        "test_timeout", "test_io", "test_fileio")
QUICK_ASYNCIO = ("test_sock_lowlevel", "test_streams", "test_sendfile", "test_server", "test_selector_events", "test_sslproto", "test_buffered_proto",
                 "test_unix_events")
RUNNER = Path(__file__).resolve().with_name("cpython_cases.py")
_python: list[str] = []
_extra: list[Path] = []


def setup() -> None:
    """This Python if it has its tests, else Debian's. Those that some distributions leave out are taken from the source of their release."""
    _python[:] = [_find()]
    _extra.clear()
    if _absent():
        version = run(_python[0], "-c", "import sys; print('%d.%d' % sys.version_info[:2])").strip()
        try:
            source(f"python{version}", f"python{version}", ("Lib/test/*",))
            folder = HOME / "src" / f"python{version}" / "Lib" / "test"
        except Unable as why:
            print(f"cpython: left out: {', '.join(_absent())}: {why}")
            return
        more = HOME / "cpython"
        more.mkdir(exist_ok=True)
        for name in _absent():
            if (folder / f"{name}.py").exists():
                shutil.copy(folder / f"{name}.py", more)
        _extra.append(more)


def _find() -> str:
    system = "/usr/bin/python3"
    for python in (sys.executable, system):
        if _has_tests(python):
            return python
    version = run(system, "-c", "import sys; print('%d.%d' % sys.version_info[:2])").strip()
    packages(f"libpython{version}-testsuite")
    if _has_tests(system):
        return system
    raise Unable("no Python with its own tests here")


def _has_tests(python: str) -> bool:
    return Path(python).exists() and subprocess.run([python, "-c", "import test.test_socket"], capture_output=True).returncode == 0


def _absent() -> list[str]:
    """Modules that this Python does not have."""
    script = "import sys, test, os; p = test.__path__[0]; print(*[n for n in sys.argv[1:] if not os.path.exists(f'{p}/{n}.py')])"
    return run(_python[0], "-c", script, *QUICK, *MORE).split()


def units(quick: bool) -> list[Unit]:
    """A module each: what breaks one does not keep the others from running."""
    listing = "import os, test.test_asyncio as t; print(*sorted(n[:-3] for n in os.listdir(t.__path__[0]) if n.startswith('test_') and n.endswith('.py') and 'windows' not in n))"
    asyncio = QUICK_ASYNCIO if quick else run(_python[0], "-c", listing).split()
    here = {name for name in QUICK + MORE if name not in _absent() or _extra and (_extra[0] / f"{name}.py").exists()}
    names = [*(name for name in (QUICK if quick else QUICK + MORE) if name in here), *(f"test_asyncio.{name}" for name in asyncio)]
    environment = {"SUITE_MORE": str(_extra[0])} if _extra else {}
    return [Unit(name, (_python[0], "-X", "faulthandler", str(RUNNER), f"test.{name}"), environment=environment, seconds=900) for name in names]


def parse(unit: Unit, ended: Ended) -> Results:
    """The runner tells when a case begins and when it ends."""
    results = {f"{unit.name} {case}": result for case, result in parsers.json_lines(ended.file("results.jsonl")).items()}
    if not results and ended.code == 0:
        return {}
    whole = OPEN if ended.code is None or died(ended.code) else PASS if ended.code in (0, 1) else "fail"
    return results | {f"{unit.name} (its end)": whole}


def only(unit: Unit, cases: list[str]) -> Unit | None:
    """The runner takes names of cases."""
    names = [case.removeprefix(f"{unit.name} ") for case in cases if not case.endswith("(its end)")]
    return replace(unit, words=(*unit.words[:5], *names)) if names else None
