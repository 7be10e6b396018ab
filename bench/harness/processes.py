"""Processes of a benchmark: each in its own group, and none left when the harness ends.

The harness makes itself the reaper of orphans, so that also daemons and the children of servers that made sessions of their own are
found below it and ended. Should the harness itself be killed, the kernel ends what it started.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Callable, Sequence

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)
_started: list["Child"] = []


class Failed(Exception):
    """A program did not do what the benchmark needs; the text says which and what it printed last."""


class Child:
    """A process that runs beside the measurement; its output goes to a file."""

    def __init__(self, argv: Sequence[str], log: Path, **options: object) -> None:
        self.argv = list(argv)
        self.log = log
        with open(log, "wb") as output:
            self.popen = subprocess.Popen(self.argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                          start_new_session=True, preexec_fn=_die_with_harness, **options)
        self.pid = self.popen.pid
        _started.append(self)

    def wait_for_listener(self, port: int, seconds: float = 15.0) -> None:
        """Waits until something in the namespace of this process listens on `port`; no connection is made for it."""
        self._wait(lambda: _listens(self.pid, port), f"nothing listens on port {port}", seconds)

    def wait_for_text(self, text: str, seconds: float = 15.0) -> str:
        """Waits until the output contains `text`; gives the output."""
        self._wait(lambda: text in self.output(), f"did not print {text!r}", seconds)
        return self.output()

    def output(self) -> str:
        """What it printed so far."""
        return self.log.read_text(errors="replace")

    def stop(self) -> None:
        """Ends the process, its group and everything below it."""
        below = descendants(self.pid)
        end([self.pid, *below])
        self.popen.wait()
        for pid in below:
            _reap(pid)
        if self in _started:
            _started.remove(self)

    def _wait(self, ready: Callable[[], bool], what: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not ready():
            code = self.popen.poll()
            if code is not None or time.monotonic() > deadline:
                ended = f"ended with {code}" if code is not None else what
                raise Failed(f"{self.argv_text()}: {ended}: {_tail(self.output())}")
            time.sleep(0.02)

    def argv_text(self) -> str:
        """The command for a message, shortened."""
        return " ".join(self.argv)[-160:]


def run(argv: Sequence[str], seconds: float = 60.0, sample: Callable[[int], None] | None = None,
        sample_every: float = 0.25, **options: object) -> str:
    """Runs a program to its end and gives its standard output; `sample` is called with its pid now and then."""
    with subprocess.Popen(list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          start_new_session=True, preexec_fn=_die_with_harness, **options) as popen:
        deadline = time.monotonic() + seconds
        try:
            while True:
                try:
                    out, err = popen.communicate(timeout=sample_every if sample else seconds)
                    break
                except subprocess.TimeoutExpired:
                    if time.monotonic() > deadline:
                        raise Failed(f"{' '.join(argv)[-160:]}: not done after {seconds:.0f} s") from None
                    if sample:
                        sample(popen.pid)
        except BaseException:
            end([popen.pid, *descendants(popen.pid)])
            raise
    if popen.returncode != 0:
        text = (err + out).decode(errors="replace")
        raise Failed(f"{' '.join(argv)[-160:]}: ended with {popen.returncode}: {_tail(text)}")
    return out.decode(errors="replace")


def become_reaper() -> None:
    """Orphans of what we start become our children, so that none can escape `stop_all`."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def stop_all() -> None:
    """Ends everything this harness started."""
    end(descendants(os.getpid()))
    for child in _started:
        child.popen.poll()
    _started.clear()
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return
        except ChildProcessError:
            return


def remove_stale_folders(prefix: str) -> None:
    """Removes the folders PREFIX + PID + ... that a killed harness left in the folder for temporary files."""
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        owner = folder.name[len(prefix):].partition(".")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(folder, ignore_errors=True)


def descendants(pid: int) -> list[int]:
    """All processes below `pid`."""
    found: list[int] = []
    for task in _list(f"/proc/{pid}/task"):
        try:
            children = Path(f"/proc/{pid}/task/{task}/children").read_text().split()
        except OSError:
            continue
        for child in children:
            found += [int(child), *descendants(int(child))]
    return found


def end(pids: Sequence[int], patience: float = 3.0) -> None:
    """Asks processes to end, waits, and kills those that did not."""
    for sign, wait in ((signal.SIGTERM, patience), (signal.SIGKILL, 1.0)):
        alive = [pid for pid in pids if _alive(pid)]
        for pid in alive:
            _kill(pid, sign)
        deadline = time.monotonic() + wait
        while any(_alive(pid) for pid in alive) and time.monotonic() < deadline:
            time.sleep(0.01)


def cpu_seconds(pids: Sequence[int]) -> float:
    """CPU time of all threads of some processes, in seconds with the scheduler's resolution."""
    total = 0
    for pid in pids:
        for task in _list(f"/proc/{pid}/task"):
            total += int(Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[0])
    return total / 1e9


def _die_with_harness() -> None:
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def _reap(pid: int) -> None:
    """Takes the exit code of an orphan that became ours."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass


def _kill(pid: int, sign: int) -> None:
    try:
        os.kill(pid, sign)
    except ProcessLookupError:
        pass


def _list(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _listens(pid: int, port: int) -> bool:
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                return True
    return False


def _tail(text: str) -> str:
    return " | ".join(text.strip().splitlines()[-4:]) or "no output"
