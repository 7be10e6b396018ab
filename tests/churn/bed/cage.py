"""Namespaces in which all of this runs: its own network, its own processes, its own /dev/shm. They vanish when it ends, whatever ends it."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys

INSIDE = "CHURN_CAGE"


class Unable(Exception):
    """What is needed cannot be had here; the text says what."""


def enter() -> None:
    """Runs this very program again inside of them; needs no root where user namespaces are allowed."""
    if os.environ.get(INSIDE):
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        return
    head = ["unshare", "--mount", "--pid", "--net", "--ipc", "--fork", "--kill-child=KILL", "--mount-proc"]
    if os.geteuid() != 0:
        head[1:1] = ["--user", "--map-root-user"]
    for program in ("unshare", "ip"):
        if not shutil.which(program):
            raise Unable(f"needs {program}")
    trial = subprocess.run([*head, "true"], capture_output=True, text=True)
    if trial.returncode:
        raise Unable(f"no namespaces here: {trial.stderr.strip()}")
    os.environ[INSIDE] = "1"
    script = 'mount -t tmpfs -o size=4g,mode=1777 tmpfs /dev/shm; exec "$@"'
    inside = subprocess.Popen([*head, "sh", "-c", script, "sh", sys.executable, *sys.argv], preexec_fn=_die_with_parent)
    # unshare(1) itself ignores requests to end while it waits.
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: inside.kill())
    code = inside.wait()
    sys.exit(code if code >= 0 else 128 - code)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
