"""redis with redis-benchmark, sized so that each run takes about as long, whatever its rate."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass
from typing import Sequence

from harness.measure import Side
from harness.namespaces import free_port
from harness.processes import Child, Failed

FIRST = 2000


@dataclass(frozen=True)
class Redis:
    """`redis-benchmark` with some clients against one redis server."""

    tests: tuple[str, ...] = ("SET", "GET")
    clients: int = 1
    pipeline: int = 1
    keep_alive: bool = True
    user: str | None = None
    needs: Sequence[str] = ("redis-server", "redis-benchmark")

    def start(self, side: Side) -> Child:
        """A server without persistence."""
        port = free_port()
        server = side.server(["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
                              "--daemonize", "no", "--dir", "/"], self.user)
        side.memory["port"] = port
        server.wait_for_listener(port)
        return server

    def run(self, side: Side, server: Child, seconds: float) -> list[float]:
        """Requests per second for each test."""
        if "rate" not in side.memory:
            side.memory["rate"] = max(self._rates(side, server, FIRST * self.pipeline))
            side.memory["rate"] = max(self._rates(side, server, self._requests(side, seconds / 4)))
        rates = self._rates(side, server, self._requests(side, seconds))
        side.memory["rate"] = max(rates)
        return rates

    def _requests(self, side: Side, seconds: float) -> int:
        return max(FIRST, int(side.memory["rate"] * seconds / len(self.tests)))

    def _rates(self, side: Side, server: Child, requests: int) -> list[float]:
        text = self._benchmark(side, server, requests, "--csv")
        found = {row[0]: float(row[1]) for row in csv.reader(io.StringIO(text)) if len(row) > 1 and row[0] in self.tests}
        if len(found) != len(self.tests):
            raise Failed(f"{side.label}: redis-benchmark printed no rate: {text[-200:]}")
        return [found[test] for test in self.tests]

    def _benchmark(self, side: Side, server: Child, requests: int, *options: str) -> str:
        return side.client(["redis-benchmark", "-h", "127.0.0.1", "-p", f"{side.memory['port']:.0f}", "-t",
                            ",".join(self.tests).lower(), "-n", str(requests), "-c", str(self.clients), "-P", str(self.pipeline),
                            "-k", str(int(self.keep_alive)), *options], server)


@dataclass(frozen=True)
class RedisTails(Redis):
    """How long the slowest of a hundred, and of a thousand, GETs take, each client with one on its way."""

    tests: tuple[str, ...] = ("GET",)

    def run(self, side: Side, server: Child, seconds: float) -> list[float]:
        """p99 and p99.9 in us."""
        if "rate" not in side.memory:
            super().run(side, server, seconds)
        text = self._benchmark(side, server, self._requests(side, seconds))
        # Lines such as "99.902% <= 0.063 milliseconds (cumulative count 99912)".
        found = [(float(share), float(ms) * 1000) for share, ms in re.findall(r"([0-9.]+)% <= ([0-9.]+) milliseconds \(", text)]
        return [_within(share, found, side.label) for share in (99, 99.9)]


def _within(wanted: float, found: list[tuple[float, float]], label: str) -> float:
    """The time of the first share that is not below what is wanted."""
    for share, us in found:
        if share >= wanted:
            return us
    raise Failed(f"{label}: redis-benchmark tells nothing of {wanted} %")
