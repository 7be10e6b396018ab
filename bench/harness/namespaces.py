"""Network namespaces in which benchmarks run, one for each congestion control, made and removed by the harness.

The host's own loopback is never touched. Without the rights to make namespaces, benchmarks run on the host's loopback with the
congestion control it has, and the table says so.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

PREFIX = "madrigal-bench"
SETTING = Path("/proc/sys/net/ipv4/tcp_congestion_control")
WANTED = ("cubic", "bbr")
PROBE = """
import socket
open("/proc/sys/net/ipv4/ip_local_port_range", "w").write("1024 65000")
listener = socket.create_server(("127.0.0.1", 0))
ends = [socket.create_connection(listener.getsockname()), listener.accept()[0]]
for end in ends:
    print(end.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\\0").decode())
"""


class Namespace:
    """Where a server and its client run."""

    def __init__(self, congestion: str, name: str | None) -> None:
        self.congestion = congestion
        self.name = name

    @property
    def enter(self) -> list[str]:
        """The head of a command that runs in it; replaced by the command in the same process."""
        return ["nsenter", f"--net=/run/netns/{self.name}", "--"] if self.name else []

    def remove(self) -> None:
        """Takes it away again."""
        if self.name:
            subprocess.run(["ip", "netns", "del", self.name], check=False, stderr=subprocess.DEVNULL)


def make_all(only: str | None = None) -> list[Namespace]:
    """One namespace for each congestion control that plain TCP may choose from."""
    _remove_stale()
    if os.geteuid() != 0:
        return [Namespace(host_default(), None)]
    wanted = [only] if only else [name for name in WANTED if name in available()]
    return [_make(name) for name in wanted or [host_default()]]


def host_default() -> str:
    """The congestion control of the host."""
    return SETTING.read_text().strip()


def available() -> list[str]:
    """The congestion controls this kernel has."""
    return SETTING.with_name("tcp_available_congestion_control").read_text().split()


def free_port() -> int:
    """A port nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _make(congestion: str) -> Namespace:
    space = Namespace(congestion, f"{PREFIX}-{os.getpid()}-{congestion}")
    _ip("netns", "add", space.name)
    try:
        _ip("-n", space.name, "link", "set", "lo", "up")
        # By route, as the default of a namespace can only be one that the host allows to everybody.
        for address in ("127.0.0.1", "127.0.0.0/8"):
            _ip("-n", space.name, "route", "replace", "local", address, "dev", "lo", "proto", "kernel", "scope", "host",
                "src", "127.0.0.1", "table", "local", "congctl", "lock", congestion)
        # Many short connections from one address: the same wide range for both sides.
        script = [sys.executable, "-c", PROBE]
        seen = subprocess.run([*space.enter, *script], check=True, capture_output=True, text=True).stdout.split()
    except BaseException:
        space.remove()
        raise
    if seen != [congestion] * 2:
        raise RuntimeError(f"congestion control {congestion} was not taken: {seen}")
    return space


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def _remove_stale() -> None:
    names = os.listdir("/run/netns") if os.path.isdir("/run/netns") else []
    for name in names:
        match = re.fullmatch(rf"{PREFIX}-(\d+)-\w+", name)
        if match and not os.path.exists(f"/proc/{match[1]}"):
            Namespace("", name).remove()
