"""Tools that measure networks: sockperf and iperf3."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Sequence

from harness.measure import Side
from harness.namespaces import free_port
from harness.processes import Child, Failed


@dataclass(frozen=True)
class SockperfPingPong:
    """64 bytes to and fro over TCP: mean of one way in microseconds."""

    needs: Sequence[str] = ("sockperf",)

    def start(self, side: Side) -> Child:
        """A server on one port."""
        port = free_port()
        server = side.server(["sockperf", "server", "--tcp", "-i", "127.0.0.1", "-p", str(port)])
        side.memory["port"] = port
        server.wait_for_listener(port)
        return server

    def run(self, side: Side, server: Child, seconds: float) -> list[float]:
        """Its own summary line."""
        # --mps: how many messages it has room for, of which the default runs out above some 600,000 a second.
        text = side.client(["sockperf", "ping-pong", "--tcp", "-i", "127.0.0.1", "-p", f"{side.memory['port']:.0f}", "-m", "64",
                            "-t", str(math.ceil(seconds)), "--mps", "10000000"], server)
        found = re.search(r"Summary: Latency is ([0-9.]+) usec", text)
        if not found:
            raise Failed(f"{side.label}: sockperf printed no latency: {text[-200:]}")
        return [float(found[1])]


@dataclass(frozen=True)
class Iperf3:
    """One stream: Gbit/s received."""

    needs: Sequence[str] = ("iperf3",)

    def start(self, side: Side) -> Child:
        """A server that takes one test after the other."""
        port = free_port()
        server = side.server(["iperf3", "--server", "--bind", "127.0.0.1", "--port", str(port)])
        side.memory["port"] = port
        server.wait_for_listener(port)
        return server

    def run(self, side: Side, server: Child, seconds: float) -> list[float]:
        """What the receiver counted."""
        text = side.client(["iperf3", "--client", "127.0.0.1", "--port", f"{side.memory['port']:.0f}", "--time",
                            str(math.ceil(seconds)), "--json"], server)
        return [json.loads(text)["end"]["sum_received"]["bits_per_second"] / 1e9]
