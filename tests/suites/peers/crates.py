"""Tests of small Rust crates that deal with sockets: polling, async-io, async-std, nix."""

from __future__ import annotations

from bed import cargo
from bed.cargo import only, parse
from bed.results import Unit

LONG = False
SECONDS = 600

CRATES = (("polling", "3.11.0", "", ("concurrent_modification", "io", "many_connections", "multiple_pollers", "notify", "precision", "timeout", "other_modes")),
          ("async-io", "2.6.0", "", ("async", "block_on", "timer")),
          ("async-std", "1.13.2", "", ("tcp", "udp", "uds", "io_copy", "io_timeout")),
          ("nix", "0.30.1", "fs,net,poll,event,socket,uio,zerocopy,term,ioctl,signal,process,ioctl,aio,sched,mqueue,dir,env,feature,hostname,inotify,"
                            "kmod,mman,mount,personality,pthread,ptrace,quota,reboot,resource,time,ucontext,user,fanotify,acct,syslog", ("test",)))


def setup() -> None:
    """All from crates.io."""
    for name, version, features, tests in CRATES:
        cargo.build(name, version, features, tests)


def units(quick: bool) -> list[Unit]:
    """A test program each."""
    return [unit for name, version, _, _ in CRATES for unit in cargo.units(name, version) if not quick or name in ("polling", "async-io")]


__all__ = ["only", "parse"]
