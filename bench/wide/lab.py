"""A lab of two sites with a daemon on each host, and what is run there."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
COMMAND = ROOT / "target" / "release" / "madrigal"
LAB = "bench-wan"
HOSTS = {"a1": "10.1.0.2", "b1": "10.2.0.2"}
"""Their addresses."""
SECOND = {"a1": "10.3.0.2", "b1": "10.4.0.2"}
"""By a second line, where there is one."""
WRAP = [str(COMMAND), "exec", "--"]
"""Before what uses Madrigal."""


@contextmanager
def lab_of(text: str) -> Iterator[None]:
    """A lab of this file with a daemon on each host, while it is used."""
    lab("down", check=False)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "lab.toml"
        file.write_text(text)
        lab("up", str(file), "--with-daemons")
    try:
        yield
    finally:
        lab("down", check=False)


def use(host: str, congestion: str) -> None:
    """Has a host use a congestion control, its daemon too, which is started again. One that does not send by rate is locked to the routes, so
    that no process chooses another; under a lock none could have the kernel find the rate anew either, which Madrigal does by BBR."""
    if congestion == "bbr":
        on(host, "sh", "-c", "echo bbr > /proc/sys/net/ipv4/tcp_congestion_control")
    else:
        on(host, "sh", "-c", f"ip route | grep via | while read route; do ip route change $route congctl lock {congestion}; done")
    on(host, str(COMMAND), "down")
    on(host, str(COMMAND), "up")


def await_link() -> None:
    """Waits until the two daemons have a link, and what measures a new one has passed."""
    for _ in range(100):
        if connections() > 0:
            time.sleep(2)
            return
        time.sleep(0.2)
    raise SystemExit("the lab: the daemons have no link after 20 s")


def connections() -> int:
    """How many connections carry the link; 0 where there is none."""
    peers = json.loads(on("a1", str(COMMAND), "status", "--json"))["peers"]
    return max((link["connections"] for peer in peers for link in peer["links"]), default=0)


def words(host: str, *command: str) -> list[str]:
    return [str(COMMAND), "lab", "--name", LAB, "exec", host, "--", *command]


def on(host: str, *command: str) -> str:
    """What a command on a host prints; it must end well."""
    done = subprocess.run(words(host, *command), capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise SystemExit(f"the lab: {' '.join(command)} on {host}: {done.stdout[-500:]}{done.stderr[-500:]}")
    return done.stdout


def lab(*words: str, check: bool = True) -> None:
    done = subprocess.run([str(COMMAND), "lab", "--name", LAB, *words], capture_output=True, text=True, timeout=120)
    if check and done.returncode != 0:
        raise SystemExit(f"the lab: madrigal lab {' '.join(words)}: {done.stderr}")


