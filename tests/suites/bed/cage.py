"""Runs one command in namespaces of its own: network, processes, mounts. Nothing it starts can outlive it, and no two commands can
meet, not by a port, not by a file in /tmp, not by Madrigal's directory in /dev/shm."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from bed.home import HOME, ROOT, Unable
from bed.results import Ended, Unit

INSIDE = Path(__file__).resolve().with_name("inside.py")
HEAD = ["unshare", "--mount", "--pid", "--net", "--ipc", "--fork", "--kill-child=KILL", "--mount-proc"]
LOOK = 0.05
LONGEST_OUTPUT = 64 << 20
_LIBC = ctypes.CDLL(None)
_running: dict[Path, subprocess.Popen[bytes] | None] = {}
"""Scratch folders that are to be removed, and what runs in each."""


def head() -> list[str]:
    """How to enter new namespaces; without root, as root of a user namespace."""
    return HEAD if os.geteuid() == 0 else [HEAD[0], "--user", "--map-root-user", *HEAD[1:]]


def check() -> None:
    """Raises `Unable` where namespaces are not to be had."""
    if not shutil.which("unshare"):
        raise Unable("needs unshare(1)")
    trial = subprocess.run([*head(), "true"], capture_output=True, text=True)
    if trial.returncode:
        raise Unable(f"no namespaces here: {trial.stderr.strip()}")


class Cage:
    """A scratch folder, made anew for one command, and the command's end."""

    def __init__(self, kept: bool = False) -> None:
        self.scratch = Path(tempfile.mkdtemp(prefix="madrigal-suites-"))
        self.tmp = self.scratch / "tmp"
        self.tmp.mkdir()
        # Users that programs change to must be able to use it.
        self.scratch.chmod(0o755)
        self.tmp.chmod(0o1777)
        self.kept = kept
        if not kept:
            _running[self.scratch] = None

    def __enter__(self) -> "Cage":
        return self

    def __exit__(self, *_: object) -> None:
        if not self.kept:
            shutil.rmtree(self.scratch, ignore_errors=True)
            _running.pop(self.scratch, None)

    def run(self, unit: Unit, wrap: list[str], environment: dict[str, str], seconds: float, idle: float) -> Ended:
        """Runs a unit to its end, at most so many seconds, and not longer than `idle` without a word of it."""
        # Where something that is needed lies below /tmp, it must not be covered.
        covered = not any(Path("/tmp") in place.parents for place in (HOME, ROOT, Path(sys.executable)))
        tmp_here = "/tmp" if covered else str(self.tmp)
        given = _given() | {"TMPDIR": tmp_here, "LANG": "C.UTF-8"} | unit.environment | environment
        settings = {"scratch": str(self.scratch), "tmp": str(self.tmp), "tmp_here": tmp_here, "words": [*wrap, *unit.words], "environment": given,
                    "folder": str(Path(tmp_here) / (unit.folder or ".")), "shell": unit.shell}
        (self.scratch / "settings.json").write_text(json.dumps(settings))
        reader, writer = os.pipe()
        began = time.monotonic()
        with open(self.scratch / "out", "wb") as out, open(self.scratch / "err", "wb") as err:
            unshare = subprocess.Popen([*head(), sys.executable, "-I", "-S", str(INSIDE), str(self.scratch / "settings.json"), str(writer)], cwd="/",
                                       stdin=subprocess.DEVNULL, stdout=out, stderr=err, pass_fds=(writer,), start_new_session=True,
                                       preexec_fn=_die_with_parent)
            if not self.kept:
                _running[self.scratch] = unshare
        os.close(writer)
        try:
            gap, stacks = self._watch(unshare, began, seconds, idle)
        finally:
            unshare.kill()
            unshare.wait()
        told = os.read(reader, 100).decode()
        os.close(reader)
        code = int(told) if told else None if stacks is not None else 125
        ended = Ended(code, _read(self.scratch / "out"), _read(self.scratch / "err"), time.monotonic() - began, gap, self.tmp, stacks or "")
        return ended if told or stacks is not None else replace(ended, err=ended.err + "\nthe cage ended without a word\n")

    def _watch(self, unshare: subprocess.Popen[bytes], began: float, seconds: float, idle: float) -> tuple[float, str | None]:
        """Waits; the longest silence, and where everything stood if it had to be ended."""
        size, heard, gap = 0, began, 0.0
        while unshare.poll() is None:
            time.sleep(LOOK)
            now = time.monotonic()
            written = sum(path.stat().st_size for path in (self.scratch / "out", self.scratch / "err", self.tmp / "results.jsonl") if path.exists())
            if written != size:
                size, heard = written, now
            gap = max(gap, now - heard)
            if now - began > seconds or now - heard > idle:
                return gap, stacks(unshare.pid)
        return gap, None


def give_up(number: int, _: object) -> None:
    """For a signal that is to end all of this: cages end with the process that made them, wherever its threads are."""
    for _, unshare in list(_running.items()):
        if unshare:
            unshare.kill()
    time.sleep(0.2)
    for scratch in list(_running):
        shutil.rmtree(scratch, ignore_errors=True)
    os._exit(128 + number)


def stacks(unshare: int) -> str:
    """Where each process below this one stands: by gdb(1) where there is one, else what the kernel tells of it."""
    told = []
    deadline = time.monotonic() + 60
    for pid in _below(unshare)[2:]:
        folder = Path(f"/proc/{pid}")
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            threads = [f"{(task / 'comm').read_text().strip()} in {(task / 'wchan').read_text()}" for task in sorted((folder / "task").iterdir())]
        except OSError:
            continue
        told.append(f"--- {pid} {command[:300]}\n" + "\n".join(threads[:50]))
        if (gdb := shutil.which("gdb")) and time.monotonic() < deadline and len(told) <= 6:
            words = [gdb, "-batch", "-nx", "-iex", "set debuginfod enabled off", "-p", str(pid), "-ex", "thread apply all backtrace 24"]
            try:
                told.append(subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=30, stdin=subprocess.DEVNULL).stdout[-20000:])
            except subprocess.TimeoutExpired:
                told.append("gdb did not answer")
    return "\n".join(told) or "nothing ran any more"


def _below(pid: int) -> list[int]:
    found = [pid]
    for one in found:
        for children in Path(f"/proc/{one}/task").glob("*/children"):
            try:
                found += [int(child) for child in children.read_text().split()]
            except OSError:
                continue
    return found


def _given() -> dict[str, str]:
    """The environment of a login: what developers and machines have set beyond that makes tests fail here and pass there."""
    names = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TZ", "CARGO_HOME", "RUSTUP_HOME", "RUSTUP_TOOLCHAIN")
    return {name: os.environ[name] for name in names if name in os.environ}


def _read(path: Path) -> str:
    with open(path, "rb") as file:
        return file.read(LONGEST_OUTPUT).decode(errors="replace")


def _die_with_parent() -> None:
    _LIBC.prctl(1, signal.SIGKILL, 0, 0, 0)
