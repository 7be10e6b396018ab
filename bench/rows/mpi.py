"""Unmodified MPIs over the libfabric provider against what they and others have of their own, measured by tests/mpi/figures.py; and
`madrigal perf circuit` against UCX."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from statistics import median
from typing import Sequence

from harness import builds, processes
from harness.measure import Figure, Plan, Result
from harness.namespaces import free_port
from harness.processes import Child, Failed

MEASURE = builds.ROOT / "tests" / "mpi" / "figures.py"
TOGETHER = builds.ROOT / "tests" / "mpi" / "together.py"


@dataclass(frozen=True)
class Mpi:
    """One contest of tests/mpi/figures.py. Each figure names what is measured, and the peers it is compared with: the best of them."""

    contest: str
    wanted: Sequence[tuple[Figure, str, tuple[str, ...]]]

    @property
    def figures(self) -> Sequence[Figure]:
        """For the list of rows."""
        return [figure for figure, _, _ in self.wanted]

    def measure(self, plan: Plan) -> list[Result]:
        """Turn about, in namespaces of their own; our ranks' own shared memory is off."""
        if not (builds.TARGET / "mpi").exists():
            raise Failed("needs tests/mpi/setup")
        command = [sys.executable, str(MEASURE), self.contest, "--runs", str(plan.runs), "--milliseconds", str(int(plan.seconds * 200))]
        found = json.loads(processes.run(command, 1200).splitlines()[-1])
        if "skipped" in found:
            raise Failed(found["skipped"])
        results = [self._result(found, *wanted) for wanted in self.wanted]
        return [result for result in results if result]

    def _result(self, found: dict, figure: Figure, key: str, peers: tuple[str, ...]) -> Result | None:
        values = found["values"].get(key, {})
        ours = values.get(found["ours"])
        if figure.absolute:
            return Result(figure, [0.0], ours, "none") if ours else None
        # A peer with a blank in its name is another figure of our own.
        known = {peer: found["values"].get(peer, {}).get(found["ours"]) if " " in peer else values.get(peer) for peer in peers}
        known = {peer: runs for peer, runs in known.items() if runs}
        if not ours or not known:
            return None
        best = (min if figure.lower_is_better else max)(known, key=lambda peer: median(known[peer]))
        gone = "; ".join(f"without {peer}: {why}" for peer, why in found["missing"].items())
        return Result(figure, known[best], ours, best, trials={peer: runs for peer, runs in known.items() if peer != best}, note=gone)


@dataclass(frozen=True)
class Circuit:
    """8 bytes one way between two processes: `madrigal perf circuit` against UCX's shared memory."""

    figures: Sequence[Figure] = (Figure("Circuit over shm, 8 B, against UCX posix", "ns", 1.0, lower_is_better=True),)

    def measure(self, plan: Plan) -> list[Result]:
        """Turn about."""
        program = builds.TARGET / "release" / "madrigal"
        if builds.missing(["ucx_perftest"]) or not program.exists():
            raise Failed("needs ucx_perftest (ucx-utils) and `cargo build --release`")
        ours, peer = [], []
        for _ in range(plan.runs):
            ours.append(float(json.loads(processes.run([str(program), "perf", "circuit", "--json"]))["link_ns"]))
            peer.append(_ucx(plan))
        return [Result(self.figures[0], peer, ours, "ucx")]


@dataclass(frozen=True)
class Together:
    """MPI, omniORB and gSOAP at the same time in the same processes: the sum of what each reaches of its own rate alone."""

    figures: Sequence[Figure] = (Figure("MPI, omniORB and gSOAP in one process, sum of shares", "", 0.95),)

    def measure(self, plan: Plan) -> list[Result]:
        """Each run measures every part alone and then all of them."""
        plain, ours = [], []
        for _ in range(plan.runs):
            command = [sys.executable, str(TOGETHER), "--alone", "--json", "--seconds", str(plan.seconds)]
            found = json.loads(processes.run(command, 300).splitlines()[-1])
            if "skipped" in found:
                raise Failed(found["skipped"])
            plain.append(found["plain"]["shares"])
            ours.append(found["madrigal"]["shares"])
            print("..", end="", file=sys.stderr, flush=True)
        return [Result(self.figures[0], [1.0], ours, "alone", trials={"plain": plain})]


def _ucx(plan: Plan) -> float:
    """Nanoseconds one way by UCX's tag matching over posix shared memory."""
    port = str(free_port())
    words = ["env", "UCX_TLS=posix,cma,self", "UCX_LOG_LEVEL=error", "ucx_perftest", "-p", port]
    server = Child([*plan.spaces[0].enter, *words], plan.scratch / "ucx-server.log")
    try:
        server.wait_for_listener(int(port))
        text = processes.run([*plan.spaces[0].enter, *words, "127.0.0.1", "-t", "tag_lat", "-s", "8", "-n", "200000", "-f"], 60)
    finally:
        server.stop()
    # iterations, then the latencies in microseconds: that of half the round trips, the last average, the average of all.
    if not (found := re.search(r"^\s*\d{6,}\s+([0-9.]+)", text, re.MULTILINE)):
        raise Failed(f"ucx_perftest printed no latency: {text[-200:]}")
    return 1000 * float(found[1])


def _time(name: str, target: float, goal: float | None = None) -> Figure:
    return Figure(name, "us", target, goal, lower_is_better=True)


def rows() -> dict[str, Mpi | Circuit | Together]:
    """Every row, by its short name."""
    own = {"openmpi4": ("Open MPI 4.1", "openmpi4/vader", 0.26), "openmpi5": ("Open MPI 5", "openmpi4/vader", 0.26),
           "mpich": ("MPICH", "mpich/ucx", 1.0), "impi19": ("Intel MPI", "impi19/shm", 1 / 1.5)}
    best, all_of_them = ("openmpi4/vader", "mpich/ucx"), ("openmpi4/vader", "mpich/ucx", "impi19/shm")
    net = ("mpich/ucx-tcp", "openmpi4/btl-tcp", "mpich/tcp")
    table: dict[str, Mpi | Circuit | Together] = {"circuit": Circuit(), "together": Together()}
    for name, (title, peer, target) in own.items():
        table[f"mpi-{name}"] = Mpi(f"latency-{name}", [
            (_time(f"{title}, 8 B, one host", target), "pingpong 8", (peer,)),
            (_time(f"{title}, 64 KiB, one host", 1.0), "pingpong 65536", best),
            (_time(f"{title}, 1 MiB, one host", 1.0), "pingpong 1048576", best),
            (Figure(f"{title}, bandwidth at 1 MiB, one host", "MB/s", 0.97), "bandwidth 1048576", all_of_them),
            (_time(f"{title}, 0 B against its own 8 B", 1 / 1.1), "pingpong 0", ("pingpong 8",)),
        ])
    for name in ("mpich", "openmpi4"):
        title = own[name][0]
        table[f"mpi-hosts-{name}"] = Mpi(f"hosts-{name}", [
            *((_time(f"{title}, {size}, two hosts", 1 / 0.9), f"pingpong {count}", net)
              for size, count in (("8 B", 8), ("64 KiB", 65536), ("1 MiB", 1048576))),
            (Figure(f"{title}, bandwidth at 1 MiB, two hosts", "MB/s", 1 / 0.9), "bandwidth 1048576", net),
        ])
    for ranks in (4, 8):
        for name in own:
            title = own[name][0]
            table[f"mpi-allreduce{ranks}-{name}"] = Mpi(f"allreduce{ranks}-{name}", [
                (_time(f"Allreduce 8 B, {ranks} ranks, {title}", 1.0), "allreduce 8", ("impi19/shm",)),
                (_time(f"Allreduce 64 KiB, {ranks} ranks, {title}", 1.0), "allreduce 65536", ("impi19/shm",)),
            ])
    table["mpi-idle"] = Mpi("idle", [
        (Figure("idle rank in a blocking receive", "% of a CPU", 1.0, lower_is_better=True, absolute=True), "idle idle", ())])
    return table
