"""How much of the machine others used while a row was measured: figures taken beside a compiler mean little, and must say so."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
QUIET = 0.05


class Meter:
    """Compares the CPU time of the machine with that of the harness and of all it has waited for."""

    def __init__(self) -> None:
        self._machine, self._stolen = _machine_seconds()
        self._ours = _our_seconds()
        self._start = time.monotonic()

    def others(self) -> float:
        """CPUs that others (other programs, and the host of this machine if it is a virtual one) kept busy, on average. Right once
        all programs that were started since have been ended and waited for."""
        busy, stolen = _machine_seconds()
        elapsed = time.monotonic() - self._start
        return max(0.0, (busy - self._machine + stolen - self._stolen - (_our_seconds() - self._ours)) / elapsed)


def wait_for_quiet(patience: float) -> None:
    """Waits until others leave the machine alone, at most `patience` seconds."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        meter = Meter()
        time.sleep(0.5)
        if meter.others() < QUIET:
            return


def _machine_seconds() -> tuple[float, float]:
    """Busy and stolen seconds of all CPUs since the start of the machine."""
    user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9])
    return (user + nice + system + irq + softirq) / TICKS, steal / TICKS


def _our_seconds() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)
