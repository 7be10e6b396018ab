"""The scenes: which hosts there are, how they are joined, and what stands between them."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Iterator

from bed.hosts import Host, Lan, Unable, firewall, ip

PREFIX = "madrigal-bed."
_count = itertools.count()
SYN_ONLY = "tcp flags & (syn | ack) == syn drop"


@dataclass
class World:
    """The hosts of one scene, joined by one network (`lan`) as far as the scene says nothing else. `h0` only launches."""

    folder: Path
    hosts: dict[str, Host]
    lan: Lan
    lans: list[Lan]

    def address(self, host: str) -> str:
        """Of a host on the network that joins all."""
        return f"{self.lan.subnet}.{list(self.hosts).index(host) + 1}"

    def reset(self) -> None:
        """Ends all that runs in the hosts, and removes what it left."""
        for host in self.hosts.values():
            host.reset()

    def remains(self) -> list[str]:
        """What is left running, and what of ours is left in /dev/shm."""
        found = []
        for host in self.hosts.values():
            found += [f"{host.name} runs {line}" for line in host.processes()]
            found += [f"{host.name} has /dev/shm/{name}" for name in host.shared_memory() if "madrigal" in name]
        return found


@dataclass(frozen=True)
class Scene:
    """One of them. `blocks`: how many ranks on which host."""

    name: str
    blocks: tuple[tuple[str, int], ...]
    make: Callable[[World], None] | None = None
    head: str = ""
    """The host where the launcher runs: the first with ranks, unless another is named."""
    shm: str = "size=1g"
    refuse: bool = False
    """Ranks are refused process_vm_readv(2)."""
    blocked: bool = False
    """Ranks cannot reach each other: what is expected is an error, in time."""
    hard: bool = False
    """One where stacks of today fail: a few tests do."""
    cannot: tuple[tuple[str, str], ...] = ()
    """MPIs that cannot run there whatever the provider, and why."""

    @property
    def ranks(self) -> int:
        """How many in all."""
        return sum(count for _, count in self.blocks)


def _docker0(world: World) -> None:
    """Every host has the same 172.17.0.1, on a bridge with a container behind it."""
    for host in world.hosts.values():
        ip("link", "add", "docker0", "type", "bridge", host=host)
        ip("link", "add", "veth0", "type", "veth", "peer", "name", "veth1", host=host)
        ip("link", "set", "veth0", "master", "docker0", "up", host=host)
        ip("link", "set", "veth1", "up", host=host)
        ip("addr", "add", "172.17.0.1/16", "dev", "docker0", host=host)
        ip("link", "set", "docker0", "up", host=host)


def _dangling(world: World) -> None:
    """Every host has a second card, all in the same subnet, each with a carrier, none connected."""
    lan = Lan(f"stub{next(_count)}", "10.66.0")
    world.lans.append(lan)
    for number, host in enumerate(world.hosts.values(), 1):
        lan.plug(host, "data0", number, connected=False)


def _closed(*pairs: tuple[str, str]) -> Callable[[World], None]:
    """A firewall that lets no connection from one host into another; what belongs to those the other way may pass."""
    def make(world: World) -> None:
        for into, source in pairs:
            firewall(world.hosts[into], f"ip saddr {world.address(source)} {SYN_ONLY}")
    return make


def _blocked(world: World) -> None:
    """Nothing passes between two hosts, and nobody says so."""
    for into, source in (("h1", "h2"), ("h2", "h1")):
        firewall(world.hosts[into], f"ip saddr {world.address(source)} drop")


ONE, TWO = (("h1", 4),), (("h1", 2), ("h2", 2))
SCENES = [
    Scene("one", ONE),
    Scene("two", TWO),
    Scene("three", (("h1", 1), ("h2", 2), ("h3", 1))),
    Scene("docker0", TWO, _docker0, hard=True),
    Scene("dangling", TWO, _dangling, hard=True),
    Scene("firewall-in", TWO, _closed(("h2", "h1")), head="h0", hard=True),
    Scene("firewall-out", TWO, _closed(("h1", "h2")), head="h0", hard=True),
    Scene("blocked", (("h1", 1), ("h2", 1)), _blocked, head="h0", blocked=True),
    Scene("small-shm", ONE, shm="size=2m", cannot=(("mpich", "MPICH itself dies of SIGBUS at its start with so little"),)),
    Scene("no-ptrace", ONE, refuse=True),
]


@contextmanager
def world_of(scene: Scene) -> Iterator[World]:
    """The hosts of a scene, until the end of the block."""
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}."))
    names = [host for host, _ in scene.blocks]
    names = list(dict.fromkeys(([scene.head] if scene.head else []) + names))
    subnet = "10.77.0"
    (folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(f"{subnet}.{n} {name}\n" for n, name in enumerate(names, 1)))
    hosts: dict[str, Host] = {}
    lans: list[Lan] = []
    try:
        for name in names:
            hosts[name] = Host(name, folder, scene.shm)
        lan = Lan(f"lan{next(_count)}", subnet)
        lans.append(lan)
        world = World(folder, hosts, lan, lans)
        for number, host in enumerate(hosts.values(), 1):
            lan.plug(host, "eth0", number)
        if scene.make:
            scene.make(world)
        yield world
    finally:
        for host in hosts.values():
            host.stop()
        for lan in lans:
            try:
                lan.remove()
            except Unable:
                pass
        shutil.rmtree(folder, ignore_errors=True)
