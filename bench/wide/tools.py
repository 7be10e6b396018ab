"""Other tools on the same line: several streams at once, as GridFTP has them, kernel MPTCP, QUIC, MPWide, and copies by ssh."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from wide.lab import HOSTS, WRAP, on, words

WARM_UP = 10
"""Seconds of another tool that are not counted."""
FILE = 512 << 20
"""Bytes of a file that is copied: more than is sent in the time."""
SSHD_PORT = "2222"
MESSAGE = (1 << 31) - 1024
"""Bytes of a message of MPWide's test."""
MPWIDE_PORTS = "( sport >= :16256 and sport <= :16300 ) or ( dport >= :16256 and dport <= :16300 )"


@dataclass
class Other:
    """What another tool carried, in Mbit/s, and what it is to be compared with."""

    name: str
    carried: float | None
    """Nothing: it is not here."""
    madrigal: float

    def row(self) -> str:
        """A row below that of the line."""
        if self.carried is None:
            return f"    {self.name:<26}{'-':>8}   not installed"
        return f"    {self.name:<26}{self.carried:>8.2f}{self.madrigal:>11.2f}{self.madrigal / max(self.carried, 0.01):>8.2f}"


def measure(madrigal: float, congestion: str, seconds: int) -> list[Other]:
    """Each of them, on a lab that is up; `madrigal`: what one stream of iperf3 carries by Madrigal there."""
    target = HOSTS["b1"]
    found = [Other(f"iperf3, {count} streams", iperf([], target, seconds, WARM_UP, "-P", str(count)), madrigal) for count in (4, 16)]
    under = ("mptcpize", "run")
    mptcp = iperf([], target, seconds, WARM_UP, under=under) if shutil.which(under[0]) else None
    found.append(Other("iperf3 by MPTCP", mptcp, madrigal))
    found.append(Other("quinn-perf", quinn(congestion, seconds) if shutil.which("quinn-perf") else None, madrigal))
    found.append(Other("MPWide, 16 streams", mpwide(seconds) if shutil.which("MPWTest") else None, madrigal))
    with tempfile.TemporaryDirectory() as folder:
        copies = Copies(Path(folder))
        for name in ("rsync", "scp"):
            here = all(map(shutil.which, (name, "sshd", "ssh-keygen")))
            plain, ours = (copies.rate(name, wrap, to, seconds) if here else None for wrap, to in (([], target), (WRAP, "b1")))
            found.append(Other(f"{name} by ssh, and under exec", plain, ours or 0.0))
    return found


def iperf(wrap: list[str], target: str, seconds: int, warm_up: int, *more: str, under: tuple[str, ...] = ()) -> float:
    """Mbit/s of iperf3 that arrived behind the warm-up. Both ends are run by `under`."""
    server = subprocess.Popen(words("b1", *under, "iperf3", "-s", "-1"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(100):
            if on("b1", "ss", "-Hltn", "sport = :5201"):
                break
            time.sleep(0.1)
        told = on("a1", *wrap, *under, "iperf3", "-c", target, *more, "-t", str(seconds), "-O", str(warm_up), "-J")
        return float(json.loads(told)["end"]["sum_received"]["bits_per_second"]) / 1e6
    finally:
        server.terminate()
        server.wait()


def quinn(congestion: str, seconds: int) -> float:
    """Mbit/s that arrived by the perf program of quinn, behind the warm-up. It has a CUBIC and a BBR of its own."""
    server = subprocess.Popen(words("a1", "quinn-perf", "server", "--listen", "0.0.0.0:4433", "--congestion", congestion),
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(1)
        told = on("b1", "quinn-perf", "client", f"{HOSTS['a1']}:4433", "--upload-size", "0", "--download-size", "100G",
                  "--duration", str(WARM_UP + seconds), "--json", "-")
        seen = json.loads(told[told.index("{"):])["intervals"][WARM_UP:]
        return sum(one["sum"]["bytes"] for one in seen) * 8 / sum(one["sum"]["seconds"] for one in seen) / 1e6
    finally:
        server.terminate()
        server.wait()


def mpwide(seconds: int) -> float:
    """Mbit/s that arrived by the test program of MPWide, behind the warm-up: one message over 16 streams, longer than the time."""
    ends: list[subprocess.Popen[bytes]] = []
    for host, role, other in (("b1", "1", "a1"), ("a1", "0", "b1")):
        command = words(host, "MPWTest", role, HOSTS[other], "16", str(MESSAGE >> 10))
        # It leaves a file where it runs.
        ends.append(subprocess.Popen(command, cwd=tempfile.gettempdir(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        # The other one gives up where nobody listens yet.
        time.sleep(2)
    try:
        time.sleep(WARM_UP)
        before, began = _received(MPWIDE_PORTS), time.monotonic()
        time.sleep(seconds)
        return (_received(MPWIDE_PORTS) - before) * 8 / (time.monotonic() - began) / 1e6
    finally:
        for end in ends:
            end.terminate()
            end.wait()


def _received(ports: str) -> int:
    """Bytes that the connections of host b1 have received so far."""
    return sum(map(int, re.findall(r"bytes_received:(\d+)", on("b1", "ss", "-HtinO", ports))))


class Copies:
    """Files that are copied by ssh, to a server on the other host."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "file"
        with self.file.open("wb") as file:
            for _ in range(FILE >> 20):
                file.write(os.urandom(1 << 20))
        for name in ("host", "user"):
            if shutil.which("ssh-keygen"):
                subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        (folder / "sshd_config").write_text(f"HostKey {folder}/host\nAuthorizedKeysFile {folder}/user.pub\nStrictModes no\nUsePAM no\n"
                                            f"PermitRootLogin yes\nPidFile none\nPort {SSHD_PORT}\nSubsystem sftp internal-sftp\n")

    def rate(self, tool: str, wrap: list[str], target: str, seconds: int) -> float:
        """Mbit/s by which the file grows behind the warm-up. All hosts of a lab have the same files."""
        there = self.folder / "copy"
        sshd = shutil.which("sshd")
        serve = f"mkdir -p /run/sshd; exec {sshd} -D -e -f {self.folder}/sshd_config"
        server = subprocess.Popen(words("b1", "sh", "-c", serve), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        client = None
        try:
            for _ in range(100):
                if on("b1", "ss", "-Hltn", f"sport = :{SSHD_PORT}"):
                    break
                time.sleep(0.1)
            client = subprocess.Popen(words("a1", *wrap, *self._command(tool, target, there)), stderr=subprocess.PIPE, text=True)
            time.sleep(WARM_UP)
            before, began = _size(there), time.monotonic()
            time.sleep(seconds)
            carried, took = _size(there) - before, time.monotonic() - began
            if client.poll() not in (None, 0):
                raise SystemExit(f"{tool} to {target}: {client.stderr.read()[-500:] if client.stderr else ''}")
            return carried * 8 / took / 1e6
        finally:
            for process in (client, server):
                if process:
                    process.terminate()
                    process.wait()
            there.unlink(missing_ok=True)

    def _command(self, tool: str, target: str, there: Path) -> list[str]:
        options = ["-i", f"{self.folder}/user"]
        for option in ("IdentitiesOnly=yes", "BatchMode=yes", "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null"):
            options += ["-o", option]
        if tool == "scp":
            return ["scp", "-q", "-P", SSHD_PORT, *options, str(self.file), f"root@{target}:{there}"]
        return ["rsync", "-W", "--inplace", "-e", " ".join(["ssh", "-p", SSHD_PORT, *options]), str(self.file), f"root@{target}:{there}"]


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0
