"""Connections through two daemons, plain and enciphered, against a direct TCP connection; and what daemons take that have nothing to do."""

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


class Bed:
    """Two daemons in one namespace, of which a1 calls b1; and a local port of a1 that leads to one of b1."""

    def __init__(self, stack: ExitStack, folder: Path, space: Namespace, tls: bool) -> None:
        self.space, self.folder, self.stack = space, folder, stack
        self.program = str(builds.TARGET / "release" / "madrigal")
        if not Path(self.program).exists():
            raise Failed("needs `cargo build --release`")
        folder.mkdir()
        port = free_port()
        # Whoever has no address is no host of this machine alone: then links are enciphered.
        (folder / "grid.toml").write_text(
            ("" if tls else "trusted = true\n")
            + f"[site.a]\nhosts.a1 = []\n[site.b]\nhosts.b1 = '127.0.0.1:{port}'\nallow = '1-65535'\n")
        if tls:
            self._run("ca", "ca", "init", "bench")
            for host in ("a1", "b1"):
                self._run("ca", "ca", "issue", "--host", host, "--out", str(folder / host / "config"))
        self.daemons = [self.start(host, "up", "--foreground", "--grid", str(folder / "grid.toml"), "--host", host) for host in ("b1", "a1")]
        deadline = time.monotonic() + 20
        while not self.links():
            if time.monotonic() > deadline:
                raise Failed(f"no link between daemons: {self.daemons[1].output()[-300:]}")
            time.sleep(0.05)
        if any(link["tls"] != tls for link in self.links()):
            raise Failed("the link is not what it should be")

    def links(self) -> list[dict]:
        """The links that a1 has."""
        try:
            return json.loads(self._run("a1", "status", "--json"))["peers"][0]["links"]
        except Failed:
            return []

    def forward(self, port: int) -> int:
        """The local port that leads to this one of b1."""
        child = self.start("a1", "forward", "0", f"b1:{port}")
        text = child.wait_for_text("leads to")
        return int(re.search(r":(\d+) leads", text)[1])

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


def _iperf3(space: Namespace, port: int, seconds: float) -> float:
    """Gbit/s received."""
    text = processes.run([*space.enter, "iperf3", "--client", "127.0.0.1", "--port", str(port), "--time", str(math.ceil(seconds)), "--json"])
    return json.loads(text)["end"]["sum_received"]["bits_per_second"] / 1e9


def _sockperf(space: Namespace, port: int, seconds: float) -> float:
    """Microseconds one way."""
    text = processes.run([*space.enter, "sockperf", "ping-pong", "--tcp", "-i", "127.0.0.1", "-p", str(port), "-m", "64", "-t",
                          str(math.ceil(seconds))])
    found = re.search(r"Summary: Latency is ([0-9.]+) usec", text)
    if not found:
        raise Failed(f"sockperf printed no latency: {text[-200:]}")
    return float(found[1])


@dataclass(frozen=True)
class TwoDaemons:
    """A measurement through two daemons, plain and by TLS, and the same without them; turn about."""

    tool: str
    figures: Sequence[Figure]

    def measure(self, plan: Plan) -> list[Result]:
        """Direct TCP is the better of the congestion controls."""
        absent = builds.missing([self.tool])
        if absent:
            raise Failed(f"needs {', '.join(absent)}")
        ask = _iperf3 if self.tool == "iperf3" else _sockperf
        lower = self.figures[0].lower_is_better
        with ExitStack() as stack:
            best: tuple[float, Namespace, int] | None = None
            trials = {}
            for space in plan.spaces:
                port = self._serve(stack, plan, space)
                trials[space.congestion] = [ask(space, port, plan.seconds) for _ in range(max(plan.trials, 1))]
                found = median(trials[space.congestion])
                if best is None or (found < best[0] if lower else found > best[0]):
                    best = (found, space, port)
            _, space, direct = best
            ports = [direct]
            for tls in (False, True):
                folder = plan.scratch / f"daemons-{self.tool}-{'tls' if tls else 'plain'}"
                ports.append(Bed(stack, folder, space, tls).forward(direct))
            seen: list[list[float]] = [[], [], []]
            for _ in range(plan.runs):
                for runs, port in zip(seen, ports):
                    runs.append(ask(space, port, plan.seconds))
        results = [Result(figure, seen[0], ours, space.congestion, trials=trials) for figure, ours in zip(self.figures, seen[1:])]
        return results

    def _serve(self, stack: ExitStack, plan: Plan, space: Namespace) -> int:
        port = free_port()
        if self.tool == "iperf3":
            command = ["iperf3", "--server", "--port", str(port)]
        else:
            command = ["sockperf", "server", "--tcp", "-i", "127.0.0.1", "-p", str(port)]
        server = Child([*space.enter, *command], plan.scratch / f"{self.tool}-{space.congestion}.log")
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


def rows() -> dict[str, TwoDaemons | IdleDaemons]:
    """The rows by their short names."""
    through = "{} through two daemons, {}"
    rate = [Figure(through.format("iperf3, 1 stream,", how), "Gbit/s", target) for how, target in (("plain", 0.4), ("by TLS", 0.3))]
    trip = [Figure(through.format("sockperf ping-pong 64 B", how), "us", 1 / 3, lower_is_better=True) for how in ("plain", "by TLS")]
    return {"daemons-iperf3": TwoDaemons("iperf3", rate), "daemons-sockperf": TwoDaemons("sockperf", trip), "daemons-idle": IdleDaemons()}
