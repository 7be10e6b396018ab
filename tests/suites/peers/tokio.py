"""Tokio's own tests of its network, of its driver, and of what is built on them."""

from __future__ import annotations

from bed import cargo
from bed.cargo import only, parse
from bed.results import Unit

LONG = False
SECONDS = 900

VERSIONS = {"tokio": "1.47.1", "tokio-util": "0.7.16"}
NET = ("tcp_accept", "tcp_connect", "tcp_echo", "tcp_into_split", "tcp_into_std", "tcp_peek", "tcp_shutdown", "tcp_socket", "tcp_split", "tcp_stream",
       "udp", "uds_cred", "uds_datagram", "uds_split", "uds_stream", "net_bind_resource", "net_lookup_host", "net_panic", "net_unix_pipe", "buffered",
       "io_async_fd", "io_driver", "io_driver_drop", "process_issue_2174", "process_issue_42", "process_kill_on_drop",
       "process_smoke", "rt_common", "rt_basic", "rt_threaded", "no_rt", "signal_usr1")
UTIL = ("udp", "codecs", "io_sync_bridge", "framed_write")


def setup() -> None:
    """Both crates from crates.io."""
    cargo.build("tokio", VERSIONS["tokio"], "full,test-util", NET)
    cargo.build("tokio-util", VERSIONS["tokio-util"], "full", UTIL)


def units(quick: bool) -> list[Unit]:
    """A test program each."""
    found = [unit for name, version in VERSIONS.items() for unit in cargo.units(name, version)]
    return [unit for unit in found if "/tcp_" in unit.name or "/net_" in unit.name or "/io_" in unit.name] if quick else found


__all__ = ["only", "parse"]
