"""omniORB, with the small client and server of bench/corba."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

from harness import builds
from harness.measure import Side
from harness.namespaces import free_port
from harness.processes import Child

LIMIT = ["-ORBgiopMaxMsgSize", str(256 << 20)]


@dataclass(frozen=True)
class Corba:
    """Calls of one kind: `call` (microseconds), `inout` or `bulk` (MiB/s)."""

    kind: str
    needs: Sequence[str] = ("omniidl", "g++")

    def start(self, side: Side) -> Child:
        """The server; its reference is what it prints."""
        server = side.server([builds.corba_programs()[0], *LIMIT, "-ORBendPoint", f"giop:tcp:127.0.0.1:{free_port()}"])
        server.wait_for_text("IOR:")
        return server

    def run(self, side: Side, server: Child, seconds: float) -> list[float]:
        """The one figure the client prints."""
        reference = next(line for line in server.wait_for_text("\n").splitlines() if line.startswith("IOR:"))
        return [float(side.client([builds.corba_programs()[1], *LIMIT, reference, self.kind, str(seconds)], server))]
