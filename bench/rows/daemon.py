"""Connections of wrapped programs through daemons, plain and enciphered, against a direct TCP connection; and what daemons take that have
nothing to do."""

from __future__ import annotations

import json
import math
import re
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Sequence

from harness import builds, processes
from harness.measure import Figure, Plan, Result
from harness.namespaces import Namespace, free_port
from harness.processes import Child, Failed


# The second host of a grid, as programs under `madrigal exec` know it by IPv4 (docs/daemon.md).
B1 = "127.77.0.2"


class Bed:
    """Daemons of hosts in one namespace: of a1, which calls b1; or of a1 and b1, which both call the relay r1."""

    def __init__(self, stack: ExitStack, folder: Path, space: Namespace, tls: bool, relay: bool = False) -> None:
        self.space, self.folder, self.stack = space, folder, stack
        self.program = str(builds.TARGET / "release" / "madrigal")
        if not Path(self.program).exists():
            raise Failed("needs `cargo build --release`")
        folder.mkdir()
        port = free_port()
        # Whoever has no address is no host of this machine alone: then links are enciphered.
        at = f"'127.0.0.1:{port}'"
        text = f"[site.a]\nhosts.a1 = []\n[site.b]\nhosts.b1 = {'[]' if relay else at}\nallow = '1-65535'\n"
        if relay:
            text += f"[site.r]\nhosts.r1 = {at}\nrelay = ['r1']\n"
        (folder / "grid.toml").write_text(text if tls else f"trusted = true\n{text}")
        hosts = ["r1", "b1", "a1"] if relay else ["b1", "a1"]
        if tls:
            self._run("ca", "ca", "init", "bench")
            for host in hosts:
                self._run("ca", "ca", "issue", "--host", host, "--out", str(folder / host / "config"))
        self.daemons = [self.start(host, "up", "--foreground", "--grid", str(folder / "grid.toml"), "--host", host) for host in hosts]
        deadline = time.monotonic() + 20
        callers = ("a1", "b1") if relay else ("a1",)
        while not all(self.links(host) for host in callers):
            if time.monotonic() > deadline:
                raise Failed(f"no link between daemons: {self.daemons[-1].output()[-300:]}")
            time.sleep(0.05)
        if any(link["tls"] != tls for host in callers for link in self.links(host)):
            raise Failed("the link is not what it should be")

    def links(self, host: str) -> list[dict]:
        """The links that a host has."""
        try:
            peers = json.loads(self._run(host, "status", "--json"))["peers"]
        except Failed:
            return []
        return [link for peer in peers for link in peer["links"]]

    def wrapped(self, host: str) -> list[str]:
        """What stands before a program of a host."""
        return [*self._head(host), "exec", "--"]

    def forward(self, host: str, port: int) -> int:
        """A port of 127.0.0.1 that leads through a1's daemon to a port of a host."""
        text = self.start("a1", "forward", "0", f"{host}:{port}").wait_for_text(" leads to ")
        return int(re.search(r":(\d+) leads to ", text)[1])

    def start(self, host: str, *args: str) -> Child:
        """A command on a host, beside the measurement."""
        child = Child([*self._head(host), *args], self.folder / f"{host}-{args[0]}.log")
        self.stack.callback(child.stop)
        return child

    def _run(self, host: str, *args: str) -> str:
        return processes.run([*self._head(host), *args])

    def _head(self, host: str) -> list[str]:
        home = self.folder / host
        home.mkdir(exist_ok=True)
        return [*self.space.enter, "env", f"XDG_RUNTIME_DIR={home}", f"MADRIGAL_CONFIG_DIR={home}/config", self.program]


def _iperf3(head: Sequence[str], host: str, port: int, seconds: float) -> float:
    """Gbit/s received."""
    text = processes.run([*head, "iperf3", "--client", host, "--port", str(port), "--time", str(math.ceil(seconds)), "--json"])
    return json.loads(text)["end"]["sum_received"]["bits_per_second"] / 1e9


def _sockperf(head: Sequence[str], host: str, port: int, seconds: float) -> float:
    """Microseconds one way."""
    text = processes.run([*head, "sockperf", "ping-pong", "--tcp", "-i", host, "-p", str(port), "-m", "64", "-t", str(math.ceil(seconds))])
    found = re.search(r"Summary: Latency is ([0-9.]+) usec", text)
    if not found:
        raise Failed(f"sockperf printed no latency: {text[-200:]}")
    return float(found[1])


@dataclass(frozen=True)
class Between:
    """What stands between two programs: one daemon, that of their host; those of two hosts; or these and a relay."""

    how: str
    daemons: int
    tls: bool
    rate: float
    """The least ratio wanted of throughput, and the longest of a round trip."""
    trip: float


WAYS = [
    Between("one daemon", 1, False, 0.45, 2.2),
    Between("two daemons, plain", 2, False, 0.4, 3),
    Between("two daemons, by TLS", 2, True, 0.3, 3),
    Between("a relay between two daemons, plain", 3, False, 0.45, 2.2),
    Between("a relay between two daemons, by TLS", 3, True, 0.45, 2.2),
]


@dataclass(frozen=True)
class Daemons:
    """A measurement of wrapped programs through daemons, each way, and of plain ones without; turn about."""

    tool: str
    wanted: Sequence[tuple[Figure, Between]]

    @property
    def figures(self) -> Sequence[Figure]:
        """For the list of rows."""
        return [figure for figure, _ in self.wanted]

    def measure(self, plan: Plan) -> list[Result]:
        """Direct TCP is the better of the congestion controls."""
        absent = builds.missing([self.tool])
        if absent:
            raise Failed(f"needs {', '.join(absent)}")
        ask = _iperf3 if self.tool == "iperf3" else _sockperf
        lower = self.figures[0].lower_is_better
        with ExitStack() as stack:
            trials, ports = {}, {}
            for space in plan.spaces:
                ports[space.congestion] = self._serve(stack, plan, space, [])
                trials[space.congestion] = [self._direct(space, ports[space.congestion], plan.seconds) for _ in range(max(plan.trials, 1))]
            best = (min if lower else max)(plan.spaces, key=lambda space: median(trials[space.congestion]))
            ways = []
            for number, (_, between) in enumerate(self.wanted):
                bed = Bed(stack, plan.scratch / f"daemons-{self.tool}-{number}", best, between.tls, between.daemons == 3)
                server = "a1" if between.daemons == 1 else "b1"
                port = self._serve(stack, plan, best, bed.wrapped(server))
                at = ("127.0.0.1", bed.forward(server, port)) if between.daemons == 1 else (B1, port)
                ways.append((bed.wrapped("a1"), *at))
            paths = [(best.enter, "127.0.0.1", ports[best.congestion]), *ways]
            for path in paths:
                ask(*path, plan.seconds / (4 if plan.quick else 2))
            seen: list[list[float]] = [[] for _ in paths]
            for turn in range(plan.runs):
                # Another one is first each time.
                for number in range(turn, turn + len(paths)):
                    seen[number % len(paths)].append(ask(*paths[number % len(paths)], plan.seconds))
            direct, *ours = seen
        return [Result(figure, direct, runs, best.congestion, trials=trials) for figure, runs in zip(self.figures, ours)]

    def _direct(self, space: Namespace, port: int, seconds: float) -> float:
        ask = _iperf3 if self.tool == "iperf3" else _sockperf
        return ask(space.enter, "127.0.0.1", port, seconds)

    def _serve(self, stack: ExitStack, plan: Plan, space: Namespace, head: Sequence[str]) -> int:
        port = free_port()
        if self.tool == "iperf3":
            command = ["iperf3", "--server", "--port", str(port)]
        else:
            command = ["sockperf", "server", "--tcp", "-i", "127.0.0.1", "-p", str(port)]
        server = Child([*(head or space.enter), *command], plan.scratch / f"{self.tool}-{port}.log")
        stack.callback(server.stop)
        server.wait_for_listener(port)
        return port


@dataclass(frozen=True)
class IdleDaemons:
    """Two daemons with a link by TLS and nothing to carry: CPU time of the busier one, and memory of the larger."""

    figures: Sequence[Figure] = (
        Figure("idle daemon", "% of a CPU", 0.5, lower_is_better=True, absolute=True),
        Figure("idle daemon: resident memory", "MiB", 30, lower_is_better=True, absolute=True),
    )

    def measure(self, plan: Plan) -> list[Result]:
        """One run, as nothing varies."""
        space, seconds = plan.spaces[0], 5.0 if plan.quick else 20.0
        with ExitStack() as stack:
            daemons = Bed(stack, plan.scratch / "daemons-idle", space, True).daemons
            time.sleep(1)
            before, start = [processes.cpu_seconds([child.pid]) for child in daemons], time.monotonic()
            time.sleep(seconds)
            spent = [processes.cpu_seconds([child.pid]) - was for child, was in zip(daemons, before)]
            used = 100 * max(spent) / (time.monotonic() - start)
            memory = max(_resident(child.pid) for child in daemons)
        return [Result(self.figures[0], [0.0], [used], space.congestion), Result(self.figures[1], [0.0], [memory], space.congestion)]


def _resident(pid: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else math.inf


def rows() -> dict[str, Daemons | IdleDaemons]:
    """The rows by their short names."""
    rate = [(Figure(f"iperf3, 1 stream, through {way.how}", "Gbit/s", way.rate), way) for way in WAYS]
    trip = [(Figure(f"sockperf ping-pong 64 B through {way.how}", "us", 1 / way.trip, lower_is_better=True), way) for way in WAYS]
    return {"daemons-iperf3": Daemons("iperf3", rate), "daemons-sockperf": Daemons("sockperf", trip), "daemons-idle": IdleDaemons()}
