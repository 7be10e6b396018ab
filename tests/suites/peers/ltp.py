"""The Linux Test Project's tests of system calls that deal with sockets, or that do with descriptors what sockets must survive."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from bed import parse as parsers
from bed.home import HOME, Unable
from bed.results import Ended, Results, Unit

LONG = False
SECONDS = 1200

CALLS = ("accept", "bind", "connect", "getpeername", "getsockname", "getsockopt", "listen", "recv", "recvfrom", "recvmsg", "recvmmsg", "send", "sendto",
         "sendmsg", "sendmmsg", "sendfile", "setsockopt", "shutdown", "socket", "socketpair", "socketcall", "sockioctl", "poll", "ppoll", "pselect",
         "select", "epoll", "epoll_create", "epoll_ctl", "epoll_wait", "epoll_pwait", "readv", "writev", "read", "write", "pread", "pwrite", "preadv",
         "pwritev", "splice", "tee", "vmsplice", "dup", "fcntl", "close", "close_range", "fork", "vfork", "clone", "execl", "execle", "execlp", "execv",
         "execve", "execvp", "execveat", "exit", "exit_group", "pipe", "eventfd", "signalfd", "io_uring", "io_submit", "io_setup", "io_destroy",
         "io_getevents", "io_pgetevents", "io_cancel", "aio", "pidfd_getfd", "pidfd_open", "pidfd_send_signal", "kcmp", "ioctl", "unshare", "setns")
QUICK = ("accept", "bind", "connect", "getpeername", "getsockname", "getsockopt", "listen", "recv", "recvfrom", "recvmsg", "recvmmsg", "send", "sendto",
         "sendmsg", "sendmmsg", "sendfile", "setsockopt", "shutdown", "socket", "socketpair", "poll", "ppoll", "pselect", "select", "epoll_wait",
         "epoll_pwait", "splice", "fork", "vfork")
# What needs disks, loop devices or half an hour.
LEFT_OUT = r"^(ioctl_loop|ioctl_ficlone|ioctl_fiemap|ioctl_sg|ioctl0[2-8]|writev03|pread0?2?_64|fcntl17|bind06|sendmsg03|setsockopt0[6-9]|pidfd_open04)"


def setup() -> None:
    """It is in no package: somebody must have built it, by its own INSTALL. What is not built is not run."""
    if not (_root() / "runtest" / "syscalls").exists():
        raise Unable(f"no LTP in {_root()}: build and install it by its own instructions, and say where by LTPROOT")


def _root() -> Path:
    return Path(os.environ.get("LTPROOT") or HOME / "ltp")


def units(quick: bool) -> list[Unit]:
    """What its list of system calls names and what is built."""
    calls = "|".join(QUICK if quick else CALLS)
    binaries = _root() / "testcases" / "bin"
    environment = {"LTPROOT": str(_root()), "PATH": f"{binaries}:{os.environ.get('PATH', '')}", "LTP_COLORIZE_OUTPUT": "0"}
    found = {}
    for line in (_root() / "runtest" / "syscalls").read_text().splitlines():
        tag, _, command = line.partition(" ")
        words = _split(command)
        if re.match(rf"({calls})[0-9]?_?[0-9]*([A-Z]?_64)?$", tag) and not re.match(LEFT_OUT, tag) and words and (binaries / words[0]).exists():
            found[tag] = Unit(tag, tuple(words), environment=environment, seconds=120)
    return list(found.values())


def _split(command: str) -> list[str]:
    # Some lines are for a shell.
    command = command.strip()
    return ["sh", "-c", command] if re.search(r"[;$|&]", command) else shlex.split(command)


def parse(unit: Unit, ended: Ended) -> Results:
    """A program is a case."""
    return parsers.ltp(unit, ended)


def only(unit: Unit, cases: list[str]) -> Unit | None:
    """It cannot be divided."""
    return unit
