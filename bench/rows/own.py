"""What has no program of its own to compare: the cost of a hook that passes, of idling, and of a VLink message."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Callable, Iterator, Sequence

from harness import builds, processes
from harness.measure import Figure, Plan, Result
from harness.namespaces import free_port
from harness.processes import Child, Failed
from harness.report import Traffic


@dataclass(frozen=True)
class PassThrough:
    """read(2) of a descriptor that is no socket, with and without the hooks."""

    figures: Sequence[Figure] = (
        Figure("hook that passes: added to a read", "ns", 10.0, lower_is_better=True, absolute=True),
        Figure("hook that passes: system calls of 1,000 reads", "calls", 1.0, lower_is_better=True, absolute=True),
    )

    def measure(self, plan: Plan) -> list[Result]:
        """Turn about, on one CPU; then counts system calls."""
        program = builds.c_program("hook")
        command = ["taskset", "-c", str(min(os.sched_getaffinity(0))), program, "400000" if plan.quick else "4000000"]
        plain, ours = [], []
        for _ in range(max(plan.runs, 5)):
            plain.append(float(processes.run(command)))
            ours.append(float(processes.run([*plan.wrap, *command])))
        results = [Result(self.figures[0], plain, ours, "none")]
        if not builds.missing(["strace"]):
            calls = [_calls_of_1000_reads(wrap, program, plan.scratch / "strace.log") for wrap in ([], plan.wrap)]
            results.append(Result(self.figures[1], [calls[0]], [calls[1]], "none"))
        return results


@dataclass(frozen=True)
class Calls:
    """The calls of an event loop, in one thread with both ends: what the code of a call costs, which no other processor makes noisy."""

    figures: Sequence[Figure] = (
        Figure("one thread: a send and a receive", "ns", 10, lower_is_better=True),
        Figure("one thread: epoll_ctl", "ns", 5, lower_is_better=True),
        Figure("one thread: a send, a wait, a receive", "ns", 10, lower_is_better=True),
        Figure("one thread: a receive of nothing", "ns", 2, lower_is_better=True),
    )

    def measure(self, plan: Plan) -> list[Result]:
        """Turn about, on one CPU."""
        command = ["taskset", "-c", str(min(os.sched_getaffinity(0))), builds.c_program("calls"), "20" if plan.quick else "60"]
        times: tuple[list[list[float]], list[list[float]]] = ([], [])
        for _ in range(plan.runs):
            for wrap, seen in zip((plan.base, plan.wrap), times):
                seen.append([float(line) for line in processes.run([*wrap, *command]).split()])
        return [Result(figure, [run[i] for run in times[0]], [run[i] for run in times[1]], "none")
                for i, figure in enumerate(self.figures)]


@dataclass(frozen=True)
class Idle:
    """Many connections in rings on which nothing is sent: CPU time of both processes, in per cent of one CPU."""

    figures: Sequence[Figure] = (Figure("idle: 1,000 connections", "% of a CPU", 0.5, lower_is_better=True, absolute=True),)

    def measure(self, plan: Plan) -> list[Result]:
        """Plain first, then wrapped; one run each, as nothing varies."""
        count, seconds = (200, 2.0) if plan.quick else (1000, 10.0)
        space = plan.spaces[0]
        traffic = Traffic()
        used = [_idle(plan, wrap, count, seconds, traffic) for wrap in ([], plan.wrap)]
        seen = {"ring_bytes": traffic.ring, "tcp_bytes": traffic.tcp, "bells": traffic.bells, "missed_bells": traffic.missed_bells}
        return [Result(self.figures[0], [used[0]], [used[1]], space.congestion, traffic.by_ring, traffic=seen,
                       note=f"{count} connections for {seconds:.0f} s")]


@dataclass(frozen=True)
class VLinkLatency:
    """A message of 8 bytes by a VLink over shared memory against the bare exchange of a cache line, one way."""

    figures: Sequence[Figure] = (Figure("VLink over shm against a bare cache line", "ns", 1 / 2.5, lower_is_better=True),)

    def measure(self, plan: Plan) -> list[Result]:
        return [Result(self.figures[0], *_perf(plan, ["vlink"], "bare_ns", "link_ns"), "none")]


@dataclass(frozen=True)
class CapiOverRust:
    """A message of 8 bytes by the library for C against the same by the Rust API, by a VLink and by a Circuit: what its code costs in one
    thread that has both ends (a Circuit is then carried by the loopback driver), and one way between two processes over shared memory.
    Turn about; differences of the medians of the runs."""

    figures: Sequence[Figure] = tuple(
        Figure(f"C API, {what}: added", "ns", 10.0, lower_is_better=True, absolute=True)
        for what in ("VLink, shm, one thread", "Circuit, loopback, one thread", "VLink, shm, one way", "Circuit, shm, one way"))

    def measure(self, plan: Plan) -> list[Result]:
        """One thread first, which no other program makes noisy."""
        rounds, iterations = ("500", "10000") if plan.quick else ("2000", "50000")
        shm = {"env": {**os.environ, "MADRIGAL_METHODS": "shm"}}
        rust, c, two = builds.rust_example("one_thread"), builds.capi_program("one_thread"), builds.capi_program("pingpong")
        single = replace(plan, runs=1)

        def alone(program: str, what: str) -> float:
            return float(processes.run([program, what, rounds], **shm))

        pairs = [(lambda what=what: alone(rust, what), lambda what=what: alone(c, what)) for what in ("vlink", "circuit")]
        pairs += [(lambda what=what: next(_perf(single, [what, "--iterations", iterations], "link_ns"))[0],
                   lambda what=what: float(processes.run([two, what, "8", iterations], **shm))) for what in ("vlink", "circuit")]
        return [_added(figure, pair, max(plan.runs, 7)) for figure, pair in zip(self.figures, pairs)]


@dataclass(frozen=True)
class Python:
    """Two processes of Python: round trips of 8 bytes by a link over shared memory against asyncio's TCP, and 64 MiB at a time against the
    same in C. Turn about."""

    figures: Sequence[Figure] = (
        Figure("Python, 8 B round trip: a link against asyncio TCP", "us", 5.0, lower_is_better=True),
        Figure("Python, 64 MiB over shm, against C", "Gbyte/s", 0.9),
    )

    def measure(self, plan: Plan) -> list[Result]:
        """Each a process of its own."""
        script = [sys.executable, str(builds.BENCH / "peers" / "python.py")]
        env = {"env": {**os.environ, "PYTHONPATH": str(builds.ROOT / "personalities" / "python" / "src")}}
        trips, rounds = ("2000", "5") if plan.quick else ("10000", "20")
        bulk = builds.capi_program("bulk")

        def python(what: str, times: str) -> float:
            return float(processes.run([*script, what, times], **env))

        small = [(python("asyncio", trips), python("link", trips)) for _ in range(plan.runs)]
        large = [(float(processes.run([bulk, rounds])), python("bulk", rounds)) for _ in range(plan.runs)]
        return [Result(self.figures[0], [run[0] for run in small], [run[1] for run in small], "asyncio TCP"),
                Result(self.figures[1], [run[0] for run in large], [run[1] for run in large], "C")]


def _added(figure: Figure, pair: tuple[Callable[[], float], Callable[[], float]], runs: int) -> Result:
    seen = [[one() for one in pair] for _ in range(runs)]
    rust, c = [run[0] for run in seen], [run[1] for run in seen]
    return Result(figure, rust, c, "Rust API", note=f"{median(c) / median(rust):.3f} x")


@dataclass(frozen=True)
class Multiplexing:
    """A message of 8 bytes by a Circuit over shared memory, which shares the driver with whoever else needs it, against a frame of
    8 bytes by the same driver with nothing above it; one way."""

    figures: Sequence[Figure] = (
        Figure("multiplexed against bare channel, shm, 8 B: added", "ns", 100.0, lower_is_better=True, absolute=True),)

    def measure(self, plan: Plan) -> list[Result]:
        return [Result(self.figures[0], *_perf(plan, ["circuit"], "channel_ns", "link_ns"), "bare channel")]


@dataclass(frozen=True)
class IdlePeers:
    """A message of 8 bytes by a Circuit over shared memory, between two that are each connected with 100 idle peers by TCP, against two that
    have none: the median of what rounds beside each other say."""

    figures: Sequence[Figure] = (Figure("shm, 8 B, 100 idle TCP peers against none", "", 1 / 1.02, lower_is_better=True),)

    def measure(self, plan: Plan) -> list[Result]:
        alone, ratios = _perf(plan, ["circuit", "--peers", "100"], "alone_ns", "ratio")
        return [Result(self.figures[0], [1.0], ratios, "no peers", note=f"{median(alone):.0f} ns with none")]


def _perf(plan: Plan, words: Sequence[str], *names: str) -> Iterator[list[float]]:
    """The figures of those names, of each run of `madrigal perf`, which measures what is compared in turn, round by round."""
    program = builds.TARGET / "release" / "madrigal"
    if not program.exists():
        raise Failed("needs `cargo build --release`")
    found = [json.loads(processes.run([str(program), "perf", *words, "--json"])) for _ in range(plan.runs)]
    return ([each[name] for each in found] for name in names)


def _calls_of_1000_reads(wrap: Sequence[str], program: str, log: Path) -> float:
    """System calls of 10,000 reads more, by ten: what starting costs falls out."""
    def calls(reads: int) -> int:
        processes.run(["strace", "-f", "-o", str(log), *wrap, program, str(reads)])
        return sum("(" in line for line in log.read_text().splitlines())
    return (calls(14000) - calls(4000)) / 10


def _idle(plan: Plan, wrap: Sequence[str], count: int, seconds: float, traffic: Traffic) -> float:
    """Per cent of a CPU that a server and a client use while they wait."""
    script, port = str(builds.BENCH / "peers" / "idle.py"), free_port()
    head = [*plan.spaces[0].enter, *wrap, sys.executable, script]
    with ExitStack() as stack:
        children = []
        for part in ("server", "client"):
            child = Child([*head, part, str(port), str(count)], plan.scratch / f"idle-{part}.log")
            stack.callback(child.stop)
            children.append(child)
            child.wait_for_listener(port) if part == "server" else child.wait_for_text("READY", 30)
        traffic.sample([children[0].pid])
        time.sleep(0.5)
        pids = [child.pid for child in children]
        before, start = processes.cpu_seconds(pids), time.monotonic()
        time.sleep(seconds)
        return 100 * (processes.cpu_seconds(pids) - before) / (time.monotonic() - start)

