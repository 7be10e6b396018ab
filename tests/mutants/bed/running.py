"""Programs with an end: whatever they start ends with them."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Ended:
    """How a program ended, and what it said on both of its outputs."""

    status: int | None
    text: str

    @property
    def good(self) -> bool:
        return self.status == 0


def run(command: list[str], folder: Path, environment: dict[str, str], seconds: float) -> Ended:
    """Runs a program in a session of its own; `status` is None when it takes longer."""
    with tempfile.TemporaryFile() as out:
        child = subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
        try:
            in_time = _await(child.pid, seconds)
            if not in_time:
                # Some clean up behind themselves.
                os.killpg(child.pid, signal.SIGTERM)
                _await(child.pid, 5)
        finally:
            # Before it is waited for: until then its number is nobody else's.
            os.killpg(child.pid, signal.SIGKILL)
            status = child.wait()
        out.seek(0)
        return Ended(status if in_time else None, out.read().decode(errors="replace"))


def _await(pid: int, seconds: float) -> bool:
    """Whether a child of ours ends in time; it stays to be waited for."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return True
        time.sleep(0.05)
    return False
