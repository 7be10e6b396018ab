"""A job of MPICH over a line: two ranks at each site, started by its own launcher, alone and under `madrigal exec`."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from wide.lab import HOSTS, ROOT, WRAP, on, words

MPICH = ROOT / "target" / "mpi" / "mpich" / "bin"
"""The wheel that `tests/mpi/setup` fetches."""
AGENT = ROOT / "tests" / "mpi" / "bed" / "agent.py"
"""Stands in for ssh."""
COLUMNS, ROWS = "16384", "16"
"""Of the grid, at each rank: a row is 128 KiB."""


@contextmanager
def hosts_that_start_programs() -> Iterator[Path]:
    """Each host starts programs on request, as by ssh, under its name and its address, while this is used; their folder."""
    with tempfile.TemporaryDirectory() as name:
        folder, agents = Path(name), []
        settings = json.dumps({"folder": "/", "environment": {"PATH": "/usr/bin:/bin", "HOME": "/root", "BED_HOSTS": name}})
        try:
            for host, address in HOSTS.items():
                command = ("env", f"BED_SETTINGS={settings}", "/usr/bin/python3", str(AGENT), "serve", f"{name}/{host}.sock")
                agents.append(subprocess.Popen(words(host, *command), stdout=subprocess.PIPE, text=True))
                if agents[-1].stdout.readline() != "ready\n":
                    raise SystemExit(f"the lab: nothing starts programs on {host}")
                (folder / f"{address}.sock").symlink_to(f"{name}/{host}.sock")
            yield folder
        finally:
            for agent in agents:
                agent.kill()
                agent.wait()


def sweeps(folder: Path, wrap: list[str], seconds: int, warm_up: int) -> float:
    """Sweeps a second of successive over-relaxation."""
    program = folder / "sor"
    if not program.exists():
        if not (MPICH / "mpicc").exists():
            raise SystemExit("no MPICH: run tests/mpi/setup --light")
        subprocess.run([MPICH / "mpicc", "-O2", "-o", program, ROOT / "bench" / "wide" / "sor.c", "-lm"], check=True)
    hosts = ",".join(f"{host}:2" for host in (HOSTS if wrap else HOSTS.values()))
    agent = f"/usr/bin/python3 {AGENT}"
    # What `madrigal exec` says to the launcher itself.
    (folder / "ssh").write_text(f"#!/bin/sh\nexec {agent} \"$@\"\n")
    (folder / "ssh").chmod(0o755)
    plain = [] if wrap else ["-launcher", "ssh", "-launcher-exec", f"{folder}/ssh", "-localhost", HOSTS["a1"]]
    told = on("a1", "env", f"BED_HOSTS={folder}", f"MADRIGAL_AGENT={agent}", *wrap, str(MPICH / "mpiexec"), *plain, "-n", "4", "-hosts", hosts,
              str(program), COLUMNS, ROWS, str(warm_up), str(seconds))
    return float(told.split()[0])
