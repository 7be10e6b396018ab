#!/usr/bin/env python3
"""Process 1 of a cage: prepares it, runs one command, and ends, which ends everything that still runs in it.

    inside.py SETTINGS DESCRIPTOR     settings: a file, as JSON; the status of the command is written to the descriptor
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import resource
import socket
import struct
import subprocess
import sys

MS_BIND = 4096
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1


def main() -> None:
    """Prepares, runs, tells."""
    told = int(sys.argv[2])
    with open(sys.argv[1]) as file:
        settings = json.load(file)
    _raise_loopback()
    _mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=4g,mode=1777")
    # Names are looked up here or not at all: there is no network to ask.
    name = socket.gethostname()
    with open(f"{settings['scratch']}/hosts", "w") as hosts:
        hosts.write(f"127.0.0.1 localhost\n127.0.1.1 {name}\n::1 localhost ip6-localhost ip6-loopback\n")
    _mount(f"{settings['scratch']}/hosts", "/etc/hosts", "", MS_BIND)
    _mount("/dev/null", "/etc/resolv.conf", "", MS_BIND)
    _mount(settings["tmp"], settings["tmp_here"], "", MS_BIND)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.umask(0o022)
    if settings["shell"]:
        subprocess.run(["sh", "-e", "-c", settings["shell"]], cwd=settings["tmp_here"], check=True, stdin=subprocess.DEVNULL)
    child = subprocess.Popen(settings["words"], cwd=settings["folder"], env=settings["environment"], stdin=subprocess.DEVNULL, start_new_session=True)
    while True:
        # Orphans come here, too.
        pid, status = os.wait()
        if pid == child.pid:
            break
    os.write(told, str(os.waitstatus_to_exitcode(status)).encode())


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | IFF_UP))


def _mount(what: str, where: str, kind: str, flags: int, data: str = "") -> None:
    if what == where:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    where = os.path.realpath(where)
    if libc.mount(what.encode(), where.encode(), kind.encode() or None, ctypes.c_ulong(flags), data.encode() or None):
        print(f"cage: {where}: {os.strerror(ctypes.get_errno())}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
