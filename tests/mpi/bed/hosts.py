"""Hosts on one machine: each with its own network, processes, mounts (so /dev/shm and /etc/hosts), name and System V objects.

The whole test bed lives in a cage (`enter_cage`): namespaces that vanish with all processes in them when the test bed ends, whatever
ends it. Hosts are process 1 of their own namespaces; networks between them are bridges of the cage. Nothing of the machine is touched.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from bed import agent

INSIDE = "BED_CAGE"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
AGENT = Path(agent.__file__).resolve()


class Unable(Exception):
    """What is needed cannot be had here; the text says what."""


def enter_cage() -> None:
    """Runs this very program again inside namespaces of its own; needs no root where user namespaces are allowed."""
    if os.environ.get(INSIDE):
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        return
    head = ["unshare", "--mount", "--pid", "--net", "--uts", "--ipc", "--fork", "--kill-child=KILL", "--mount-proc"]
    if os.geteuid() != 0:
        head[1:1] = ["--user", "--map-root-user"]
    for program in ("unshare", "ip"):
        if not shutil.which(program, path=PATH):
            raise Unable(f"needs {program}")
    trial = subprocess.run([*head, "true"], capture_output=True, text=True)
    if trial.returncode:
        raise Unable(f"no namespaces here: {trial.stderr.strip()}")
    os.environ[INSIDE] = "1"
    inside = subprocess.Popen([*head, sys.executable, *sys.argv], preexec_fn=_die_with_parent)
    # unshare(1) itself ignores requests to end while it waits.
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: inside.kill())
    code = inside.wait()
    sys.exit(code if code >= 0 else 128 - code)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)


def ip(*words: str, host: "Host | None" = None) -> None:
    """ip(8), in the cage or in a host."""
    head = ["nsenter", f"--net=/proc/{host.pid}/ns/net", "--"] if host else []
    done = subprocess.run([*head, "ip", *words], capture_output=True, text=True)
    if done.returncode:
        raise Unable(f"ip {' '.join(words)}: {done.stderr.strip()}")


class Host:
    """One of them."""

    def __init__(self, name: str, folder: Path, shm: str = "size=1g", environment: dict[str, str] | None = None) -> None:
        self.name = name
        self.folder = folder
        self.tmp = folder / f"tmp-{name}"
        self.tmp.mkdir()
        given = {"PATH": PATH, "HOME": os.environ.get("HOME", "/root"), "TMPDIR": str(self.tmp), "LANG": "C.UTF-8", "USER": "root",
                 "BED_HOSTS": str(folder), "SHELL": "/bin/sh", **(environment or {})}
        # Mounts before the agent, whose program then is process 1 with its own /proc.
        script = (f"mount -t tmpfs -o {shm} tmpfs /dev/shm && mount --bind {folder}/hosts /etc/hosts && hostname {name} && ip link set lo up && "
                  f"exec {sys.executable} {AGENT} serve {folder}/{name}.sock")
        settings = json.dumps({"folder": str(self.tmp), "environment": given})
        self.popen = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--net", "--uts", "--ipc", "--fork", "--kill-child=KILL", "--mount-proc", "sh", "-c", script],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env={**os.environ, "BED_SETTINGS": settings})
        if self.popen.stdout.readline() != b"ready\n":
            raise Unable(f"host {name} did not start")
        children = Path(f"/proc/{self.popen.pid}/task/{self.popen.pid}/children").read_text().split()
        self.pid = int(children[0])

    def run(self, command: str, seconds: float, log: Path) -> int | None:
        """Runs a shell command in it, output to a file; None if it did not end in time (it is then still running)."""
        with open(log, "wb") as output, open(os.devnull, "rb") as nothing:
            child = os.fork()
            if child == 0:
                try:
                    os._exit(min(agent.ask(self.folder / f"{self.name}.sock", command, (nothing.fileno(), output.fileno(), output.fileno())), 255))
                finally:
                    os._exit(255)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.01)
        os.kill(child, 9)
        os.waitpid(child, 0)
        return None

    def processes(self) -> list[str]:
        """Command lines of what runs in it, without its process 1."""
        found = []
        for entry in Path(f"/proc/{self.pid}/root/proc").iterdir():
            if entry.name.isdigit() and entry.name != "1":
                try:
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue
                if words[0]:
                    found.append(f"{entry.name} {b' '.join(words[:6]).decode(errors='replace')}")
        return found

    def stacks(self) -> str:
        """Where each process in it stands: by gdb(1) where there is one, else what the kernel tells of it."""
        told = []
        for folder in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
            try:
                inside = (folder / "ns/pid").readlink() == Path(f"/proc/{self.pid}/ns/pid").readlink()
                if not inside or folder.name == str(self.pid):
                    continue
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                told.append(f"--- {folder.name} {command[:200]}\n{(folder / 'wchan').read_text()}")
            except OSError:
                continue
            if gdb := shutil.which("gdb", path=PATH):
                words = [gdb, "-batch", "-nx", "-p", folder.name, "-ex", "thread apply all backtrace 24"]
                try:
                    told.append(subprocess.run(words, capture_output=True, text=True, timeout=60).stdout[-6000:])
                except subprocess.TimeoutExpired:
                    told.append("gdb did not answer")
        return "\n".join(told)

    def shared_memory(self) -> list[str]:
        """Names of files in its /dev/shm."""
        folder = Path(f"/proc/{self.pid}/root/dev/shm")
        return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())

    def reset(self) -> None:
        """Kills all that runs in it and empties its /dev/shm and its folder for temporary files."""
        agent.ask(self.folder / f"{self.name}.sock", agent.RESET, (0, 1, 2))
        for folder in (Path(f"/proc/{self.pid}/root/dev/shm"), self.tmp):
            for entry in folder.iterdir():
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry, ignore_errors=True)
                else:
                    entry.unlink(missing_ok=True)

    def stop(self) -> None:
        """Ends it and everything in it."""
        self.popen.kill()
        self.popen.wait()
        self.popen.stdout.close()


class Lan:
    """A switch and the hosts plugged into it."""

    def __init__(self, name: str, subnet: str) -> None:
        self.name, self.subnet = name, subnet
        ip("link", "add", name, "type", "bridge")
        ip("link", "set", name, "up")

    def plug(self, host: Host, card: str, number: int, connected: bool = True) -> str:
        """Gives a host a card of this network and the address SUBNET.number; an unconnected one has a carrier but nobody behind it."""
        outer, address = f"{self.name}-{host.name}", f"{self.subnet}.{number}"
        ip("link", "add", outer, "type", "veth", "peer", "name", card, "netns", str(host.pid))
        if connected:
            ip("link", "set", outer, "master", self.name)
        ip("link", "set", outer, "up")
        ip("addr", "add", f"{address}/24", "dev", card, host=host)
        ip("link", "set", card, "up", host=host)
        return address

    def remove(self) -> None:
        """Takes the switch away."""
        ip("link", "del", self.name)


def firewall(host: Host, *rules: str) -> None:
    """Rules of nftables for what comes into a host."""
    text = "table inet bed { chain incoming { type filter hook input priority 0; policy accept; " + "".join(f"{rule}; " for rule in rules) + "}; }\n"
    done = subprocess.run(["nsenter", f"--net=/proc/{host.pid}/ns/net", "--", "nft", text], capture_output=True, text=True)
    if done.returncode:
        raise Unable(f"nft: {done.stderr.strip()}")
