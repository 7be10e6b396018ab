#!/usr/bin/env python3
"""Stands in for ssh between the hosts of the test bed: runs commands inside a host's namespaces.

    agent.py serve SOCKET              process 1 of a host
    agent.py [-OPTIONS] HOST COMMAND   as launchers call ssh; hosts are the sockets in the folder BED_HOSTS

Like ssh, it takes no environment along: launchers must. Descriptors of the caller are handed over, so that output takes its usual way.
"""

from __future__ import annotations

import array
import json
import os
import signal
import socket
import sys
from pathlib import Path

RESET = "\0reset"


def main() -> int:
    """Serves, or asks a server."""
    if sys.argv[1] == "serve":
        return serve(sys.argv[2])
    words = sys.argv[1:]
    while words and words[0].startswith("-"):
        words.pop(0)
    host, command = words[0], " ".join(words[1:])
    folder = os.environ.get("BED_HOSTS") or str(Path(__file__).resolve().parent)
    return ask(Path(folder) / f"{host}.sock", command)


def ask(path: Path, command: str, fds: tuple[int, int, int] = (0, 1, 2)) -> int:
    """Runs a shell command in a host; its exit code, or 128 + the signal that ended it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.connect(str(path))
        peer.sendmsg([b"."], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds).tobytes())])
        peer.sendall(command.encode() + b"\n\n")
        peer.shutdown(socket.SHUT_WR)
        answer = b""
        while part := peer.recv(100):
            answer += part
    return int(answer) if answer else 255


def serve(path: str) -> int:
    """Runs what is asked for until it is killed; as process 1, also takes the orphans."""
    settings = json.loads(os.environ["BED_SETTINGS"])
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(64)
    running: dict[int, socket.socket] = {}
    wake, woken = os.pipe2(os.O_NONBLOCK)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    print("ready", flush=True)
    import select
    while True:
        ready, _, _ = select.select([listener, wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
            _reap(running)
        if listener in ready:
            peer, _ = listener.accept()
            _start(peer, settings, running)


def _start(peer: socket.socket, settings: dict, running: dict[int, socket.socket]) -> None:
    _, ancillary, _, _ = peer.recvmsg(1, socket.CMSG_SPACE(12))
    fds = array.array("i")
    fds.frombytes(ancillary[0][2])
    text = b""
    while part := peer.recv(65536):
        text += part
    command = text[:-2].decode()
    if command == RESET:
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            pass
        peer.sendall(b"0")
        peer.close()
    else:
        pid = os.fork()
        if pid == 0:
            _become(command, settings, list(fds))
        running[pid] = peer
    for fd in fds:
        os.close(fd)


def _become(command: str, settings: dict, fds: list[int]) -> None:
    try:
        os.setsid()
        for number, fd in enumerate(fds):
            os.dup2(fd, number)
        os.closerange(3, 1024)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.chdir(settings["folder"])
        os.execve("/bin/sh", ["sh", "-c", command], settings["environment"])
    finally:
        os._exit(127)


def _reap(running: dict[int, socket.socket]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        peer = running.pop(pid, None)
        if peer:
            code = os.waitstatus_to_exitcode(status)
            try:
                peer.sendall(str(code if code >= 0 else 128 - code).encode())
            except OSError:
                pass
            peer.close()


if __name__ == "__main__":
    sys.exit(main())
