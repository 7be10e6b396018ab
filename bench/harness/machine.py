"""What a reader needs to judge a figure: the machine, its load, and what it costs to wake a sleeper on it."""

from __future__ import annotations

import datetime
import os
import platform
from pathlib import Path

from harness import namespaces
from harness.builds import c_program
from harness.processes import Failed, run


def load() -> list[float]:
    """The load averages of now."""
    return [round(value, 2) for value in os.getloadavg()]


def describe() -> dict[str, object]:
    """The head of the result file, apart from load at the end."""
    cpus = sorted(os.sched_getaffinity(0))
    head: dict[str, object] = {
        "date": datetime.date.today().isoformat(),
        "commit": _commit(),
        "cpus": len(cpus),
        "cpu": _cpu_model(),
        "kernel": platform.release(),
        "congestion_control_default": namespaces.host_default(),
        "loadavg_start": load(),
    }
    return {**head, **measure_hardware(cpus)}


def measure_hardware(cpus: list[int]) -> dict[str, float | None]:
    """Cost of waking a sleeper on another CPU (by pipe and by futex) and of moving one cache line there."""
    if len(cpus) < 2:
        return {"wake_up_us": None, "wake_up_futex_us": None, "cache_line_ns": None}
    pair = [str(cpus[0]), str(cpus[1])]
    pipe, futex = run([c_program("wakeup"), *pair]).split()
    return {"wake_up_us": float(pipe), "wake_up_futex_us": float(futex), "cache_line_ns": cache_line_ns(pair)}


def cache_line_ns(pair: list[str]) -> float:
    """One way of a cache line between two CPUs, nothing else: the floor of any message."""
    return float(run([c_program("cacheline"), *pair]))


def _commit() -> str:
    """What is checked out, with a mark if something was changed since."""
    try:
        return run(["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]).strip()
    except Failed:
        return "unknown"


def _cpu_model() -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
