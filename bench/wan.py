#!/usr/bin/env python3
"""Measures links between daemons over long, lossy lines of a lab against plain TCP on the same line.

    bench/wan.py                       every line, with CUBIC and with BBR: ten minutes
    bench/wan.py --only thin,fat       some of them; --list names them
    bench/wan.py --congestion cubic    where the kernels may have that only

Each line is a `madrigal lab` with a fixed seed, so that the same packets are lost each time. Plain TCP is one stream of iperf3 from host
to host; Madrigal is the same command under `madrigal exec`, through two daemons, by TLS. Both are counted where they arrive, behind a
warm-up: what slow start, and the search for the number of connections, take is not in the figures. Lines of `text` and `noise` carry the
sources of this repository, and random bytes, by a sender of our own, for what iperf3 sends cannot be compressed. The line `datagrams` is of
UDP: more than the line carries, to a port of the other host, and to one of `madrigal forward --udp`, of which some may be lost; then two
thirds of that, for how late 99 of 100 arrive. The line `urgent` has two bulk transfers of iperf3, and beside them short questions of class
`urgent`, of which 99 of 100 are to be answered within twice what they take on the empty line. Exit status 1: a line carries less than it is to.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMAND = ROOT / "target" / "release" / "madrigal"
LAB = "bench-wan"
HOSTS = {"a1": "10.1.0.2", "b1": "10.2.0.2"}
"""Their addresses."""
SECOND = {"a1": "10.3.0.2", "b1": "10.4.0.2"}
"""By a second line, where there is one."""
CONTROLS = ("cubic", "bbr")


@dataclass(frozen=True)
class Line:
    """A line between two sites, and the Mbit/s that Madrigal is to carry at least."""

    name: str
    rate: str
    delay: str
    loss: str
    least: dict[str, float]
    """Mbit/s by congestion control; of lines of text and noise: how many times what plain TCP carries."""
    data: str = ""
    """`text` or `noise` where that is what is sent."""
    beside: str = ""
    """The delay of a second line of the same rate, by which each host has another address."""
    urgent: bool = False
    """Two bulk transfers, and urgent questions beside them."""
    tolerance: int = 0
    """So many percent of datagrams may be lost, where that is what is sent."""

    def text(self) -> str:
        """What it is, in words; the delay is one way."""
        more = f", UDP of which {self.tolerance} % may be lost" if self.tolerance else ", two bulk transfers and urgent questions" if self.urgent else f", {self.data}" if self.data else f", and one of 2 x {self.beside}" if self.beside else ""
        return f"{self.rate}bit/s, 2 x {self.delay}, {self.loss} lost{more}"

    def lab(self) -> str:
        """The lab's file."""
        lines = [("ab", self.delay, HOSTS)] + ([("cd", self.beside, SECOND)] if self.beside else [])
        text = ""
        for (left, right), delay, addresses in lines:
            for site, (host, address) in zip((left, right), addresses.items()):
                text += f"[site.{site}]\nnetwork = '{address[:-1]}0/24'\nhosts = ['{host}']\n"
            text += (f"[link.{left}{right}]\nbetween = ['{left}', '{right}']\nrate = '{self.rate}'\ndelay = '{delay}'\n"
                     f"loss = '{self.loss}'\nseed = 1\n")
        return text


LINES = (
    Line("long", "100M", "50ms", "0.1%", {"cubic": 88, "bbr": 92}),
    Line("lossy", "100M", "50ms", "1%", {"cubic": 40, "bbr": 90}),
    Line("thin", "10M", "75ms", "5%", {"bbr": 9.0}),
    Line("fat", "1000M", "25ms", "0.01%", {"bbr": 800}),
    Line("near", "100M", "4.5ms", "0.05%", {"bbr": 95}),
    Line("text10", "10M", "25ms", "0%", {"cubic": 3, "bbr": 3}, "text"),
    Line("noise10", "10M", "25ms", "0%", {"cubic": 0.98, "bbr": 0.98}, "noise"),
    Line("text100", "100M", "10ms", "0%", {"cubic": 2.5, "bbr": 2.5}, "text"),
    Line("datagrams", "8M", "50ms", "7%", {"cubic": 0.95, "bbr": 0.95}, tolerance=10),
    Line("urgent", "100M", "50ms", "0%", {"cubic": 85, "bbr": 85}, urgent=True),
    Line("two", "50M", "10ms", "0%", {"cubic": 90, "bbr": 90}, beside="30ms"),
)

RECEIVER = """
import socket, sys, time
warm_up, seconds = float(sys.argv[1]), float(sys.argv[2])
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("", 5201))
listener.listen()
print("ready", flush=True)
connection, _ = listener.accept()
buffer, count, begun = bytearray(1 << 16), 0, time.monotonic() + warm_up
while time.monotonic() < begun + seconds and (got := connection.recv_into(buffer)):
    count += got if time.monotonic() >= begun else 0
print(count * 8 / seconds / 1e6)
"""

SENDER = """
import os, pathlib, socket, sys
target, data, root = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
if data == "text":
    folders = "bench", "crates", "docs", "personalities", "tests", "tools"
    files = sorted(path for folder in folders for kind in ("rs", "md", "py") for path in root.glob(folder + "/**/*." + kind))
    piece = b"".join(path.read_bytes() for path in files)
else:
    piece = os.urandom(16 << 20)
connection = socket.create_connection((target, 5201))
try:
    while True:
        connection.sendall(piece)
except OSError:
    pass
"""


DATAGRAM = 1100
"""Bytes of a datagram: less than any path carries."""
LATE = 1.5
"""How many round trips 99 of 100 datagrams may take."""

TAKER = """
import socket, sys, time
warm_up, seconds = float(sys.argv[1]), float(sys.argv[2])
taker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
taker.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
taker.bind(("", 5004))
print("ready", flush=True)
count, delays, begun = 0, [], None
while begun is None or time.monotonic() < begun + seconds:
    got = taker.recv(65536)
    begun = begun or time.monotonic() + warm_up
    if time.monotonic() >= begun:
        count += len(got)
        delays.append(time.monotonic_ns() - int.from_bytes(got[:8], "little"))
delays.sort()
print(count * 8 / seconds / 1e6, delays[len(delays) * 99 // 100] / 1e6)
"""

GIVER = """
import socket, sys, time
port, rate, length, seconds = int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])
giver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
giver.connect((sys.argv[1], port))
begun = due = time.monotonic()
while due < begun + seconds:
    due += length * 8 / rate
    time.sleep(max(0, due - time.monotonic()))
    try:
        giver.send(time.monotonic_ns().to_bytes(8, "little") + bytes(length - 8))
    except OSError:
        pass
"""


QUESTION_PORT = 7001
"""Of urgent questions."""
RULES = f"""
[rule.questions]
ports = "{QUESTION_PORT}"
class = "urgent"
[rule.transfers]
ports = "5201-5202"
class = "bulk"
"""

ANSWERER = """
import socket, sys
listener = socket.create_server(("", int(sys.argv[1])))
print("ready", flush=True)
connection, _ = listener.accept()
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while got := connection.recv(64):
    connection.sendall(got)
"""

ASKER = """
import socket, sys, time
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
times, end = [], time.monotonic() + float(sys.argv[3])
while time.monotonic() < end:
    began, left = time.monotonic_ns(), 64
    connection.sendall(bytes(64))
    while left:
        left -= len(connection.recv(left))
    times.append(time.monotonic_ns() - began)
    time.sleep(0.02)
times.sort()
print(times[len(times) * 99 // 100] / 1e6)
"""


@dataclass
class Result:
    """What one line carried with one congestion control, in Mbit/s."""

    line: str
    congestion: str
    plain: float
    madrigal: float
    connections: int
    least: float | None
    """Mbit/s."""
    late: float | None = None
    """Within so many milliseconds 99 of 100 datagrams arrived, at two thirds of the rate, or urgent questions were answered."""
    most_late: float | None = None

    def falls_short(self) -> bool:
        """Whether it is less than wanted, or than plain TCP carries."""
        if self.late is not None and self.late > (self.most_late or 0):
            return True
        # Plain UDP may lose any share of what it carries, and has smaller headers.
        least = 0.0 if self.late is not None else 0.97 * self.plain
        return self.madrigal < max(self.least or 0, least)

    def row(self) -> str:
        """A row of the table."""
        wanted = f"{self.least:.3g}" if self.least else "-"
        late = f", 99 of 100 within {self.late:.0f} ms, {self.most_late:.0f} wanted" if self.late is not None else ""
        return (f"{self.line:<10}{self.congestion:<8}{self.plain:>9.2f}{self.madrigal:>11.2f}{self.madrigal / self.plain:>8.2f}"
                f"{self.connections:>13}{wanted:>10}  {'short' if self.falls_short() else 'ok'}{late}")


def main() -> int:
    """Parses the command line, measures, prints a table."""
    options = _parse()
    if options.list:
        print("\n".join(f"{line.name:<10}{line.text()}" for line in LINES))
        return 0
    print("line      control     plain   Madrigal   ratio  connections  at least", flush=True)
    results = []
    for line in options.lines:
        # What datagrams do hangs on no congestion control of TCP.
        for congestion in options.congestion[:1 if line.tolerance else None]:
            results.append(_measure(line, congestion, options.seconds))
            print(results[-1].row(), flush=True)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    print(f"Mbit/s as received, one stream; wrote {options.json}")
    return 1 if any(result.falls_short() for result in results) else 0


def _measure(line: Line, congestion: str, seconds: int) -> Result:
    """One line with one congestion control, in a lab of its own."""
    lab("down", check=False)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "lab.toml"
        file.write_text(line.lab())
        lab("up", str(file), "--with-daemons")
    try:
        if line.beside:
            for host, other in (("a1", "b1"), ("b1", "a1")):
                own = SECOND[host][:-1]
                on(host, "ip", "route", "add", f"{SECOND[other][:-1]}0/24", "via", f"{own}1")
        for host in HOSTS:
            use(host, congestion)
        await_link()
        wrap = [str(COMMAND), "exec", "--"]
        least = line.least.get(congestion)
        # As for a transfer that lasts: the number of connections is found by then.
        if line.tolerance:
            return _datagrams(line, congestion, seconds)
        if line.urgent:
            return _urgent(line, congestion, seconds)
        if line.data:
            plain = _send(line.data, [], HOSTS["b1"], seconds, 4)
            madrigal = _send(line.data, wrap, "b1", seconds, 15)
            least = least and least * plain
        else:
            plain = _iperf([], HOSTS["b1"], seconds, 4)
            madrigal = _iperf(wrap, "b1", seconds, 15)
        return Result(line.name, congestion, plain, madrigal, _connections(), least)
    finally:
        lab("down", check=False)


def use(host: str, congestion: str) -> None:
    """Has a host use a congestion control, its daemon too, which is started again."""
    on(host, "sh", "-c", f"ip route | grep via | while read route; do ip route change $route congctl lock {congestion}; done")
    on(host, str(COMMAND), "down")
    on(host, str(COMMAND), "up")


def await_link() -> None:
    """Waits until the two daemons have a link, and what measures a new one has passed."""
    for _ in range(100):
        if _connections() > 0:
            time.sleep(2)
            return
        time.sleep(0.2)
    raise SystemExit("wan.py: the daemons have no link after 20 s")


def _connections() -> int:
    """How many connections carry the link; 0 where there is none."""
    peers = json.loads(on("a1", str(COMMAND), "status", "--json"))["peers"]
    return max((link["connections"] for peer in peers for link in peer["links"]), default=0)


def _iperf(wrap: list[str], target: str, seconds: int, warm_up: int) -> float:
    """Mbit/s that arrived behind the warm-up."""
    server = subprocess.Popen(words("b1", "iperf3", "-s", "-1"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(100):
            if on("b1", "ss", "-Hltn", "sport = :5201"):
                break
            time.sleep(0.1)
        told = on("a1", *wrap, "iperf3", "-c", target, "-t", str(seconds), "-O", str(warm_up), "-J")
        return float(json.loads(told)["end"]["sum_received"]["bits_per_second"]) / 1e6
    finally:
        server.terminate()
        server.wait()


def _send(data: str, wrap: list[str], target: str, seconds: int, warm_up: int) -> float:
    """Mbit/s of text or noise that arrived behind the warm-up."""
    server = subprocess.Popen(words("b1", "python3", "-c", RECEIVER, str(warm_up), str(seconds)), stdout=subprocess.PIPE, text=True)
    try:
        server.stdout.readline()
        on("a1", *wrap, "python3", "-c", SENDER, target, data, str(ROOT))
        return float(server.communicate(timeout=60)[0])
    finally:
        server.kill()
        server.wait()


def _datagrams(line: Line, congestion: str, seconds: int) -> Result:
    """What arrives of datagrams, and how late: by UDP alone, and by a forwarded port."""
    rate = float(line.rate[:-1]) * 1e6
    forward = subprocess.Popen(words("a1", str(COMMAND), "forward", "--udp", "--tolerance", str(line.tolerance), "0", "b1:5004"),
                               stdout=subprocess.PIPE, text=True)
    try:
        port = forward.stdout.readline().split()[0].split(":")[1]
        for _ in range(100):
            if json.loads(on("a1", str(COMMAND), "status", "--json"))["datagrams"][0]["by"] == "quic":
                break
            time.sleep(0.1)
        else:
            raise SystemExit("wan.py: datagrams do not go by QUIC after 10 s")
        plain, _ = _give(HOSTS["b1"], "5004", 1.25 * rate, seconds)
        madrigal, _ = _give("127.0.0.1", port, 1.25 * rate, seconds)
        _, late = _give("127.0.0.1", port, rate * 2 / 3, seconds)
    finally:
        forward.terminate()
        forward.wait()
    round_trip = 2 * float(line.delay.removesuffix("ms"))
    return Result(line.name, congestion, plain, madrigal, 1, line.least[congestion] * plain, late, LATE * round_trip)


def _give(target: str, port: str, rate: float, seconds: int) -> tuple[float, float]:
    """Sends datagrams at a rate: Mbit/s that arrived behind a warm-up, and within how many milliseconds 99 of 100 did."""
    warm_up = 5
    taker = subprocess.Popen(words("b1", "python3", "-c", TAKER, str(warm_up), str(seconds)), stdout=subprocess.PIPE, text=True)
    try:
        taker.stdout.readline()
        on("a1", "python3", "-c", GIVER, target, port, str(rate), str(DATAGRAM), str(warm_up + seconds + 1))
        arrived, late = taker.communicate(timeout=60)[0].split()
        return float(arrived), float(late)
    finally:
        taker.kill()
        taker.wait()


def _urgent(line: Line, congestion: str, seconds: int) -> Result:
    """What two bulk transfers carry, and how late urgent questions beside them are answered; 85 of 100 are for the line's headers and what they take."""
    for host in HOSTS:
        on(host, "sh", "-c", f"printf '%s' '{RULES}' >> $MADRIGAL_CONFIG_DIR/grid.toml")
        on(host, str(COMMAND), "grid", "reload")
    wrap = [str(COMMAND), "exec", "--"]
    plain = _iperf([], HOSTS["b1"], seconds, 4)
    alone = _ask(wrap, seconds)
    servers = [subprocess.Popen(words("b1", "iperf3", "-s", "-1", "-p", port), stdout=subprocess.DEVNULL) for port in ("5201", "5202")]
    try:
        time.sleep(1)
        # Questions are asked when slow start is over, and until before the transfers end.
        transfers = [subprocess.Popen(words("a1", *wrap, "iperf3", "-c", "b1", "-p", port, "-t", str(seconds + 12), "-O", "10", "-J"),
                                      stdout=subprocess.PIPE, text=True) for port in ("5201", "5202")]
        time.sleep(10)
        late = _ask(wrap, seconds)
        told = [json.loads(transfer.communicate(timeout=60)[0]) for transfer in transfers]
    finally:
        for server in servers:
            server.terminate()
            server.wait()
    carried = sum(float(one["end"]["sum_received"]["bits_per_second"]) for one in told) / 1e6
    return Result(line.name, congestion, plain, carried, _connections(), line.least.get(congestion), late, 2 * alone)


def _ask(wrap: list[str], seconds: int) -> float:
    """Within how many milliseconds 99 of 100 urgent questions were answered."""
    port = str(QUESTION_PORT)
    server = subprocess.Popen(words("b1", "python3", "-c", ANSWERER, port), stdout=subprocess.PIPE, text=True)
    try:
        server.stdout.readline()
        return float(on("a1", *wrap, "python3", "-c", ASKER, "b1", port, str(seconds)))
    finally:
        server.kill()
        server.wait()


def words(host: str, *command: str) -> list[str]:
    return [str(COMMAND), "lab", "--name", LAB, "exec", host, "--", *command]


def on(host: str, *command: str) -> str:
    """What a command on a host prints; it must end well."""
    done = subprocess.run(words(host, *command), capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise SystemExit(f"wan.py: {' '.join(command)} on {host}: {done.stdout[-500:]}{done.stderr[-500:]}")
    return done.stdout


def lab(*words: str, check: bool = True) -> None:
    done = subprocess.run([str(COMMAND), "lab", "--name", LAB, *words], capture_output=True, text=True, timeout=120)
    if check and done.returncode != 0:
        raise SystemExit(f"wan.py: madrigal lab {' '.join(words)}: {done.stderr}")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog="Build first: make build")
    parser.add_argument("--only", metavar="NAME,NAME", help="only these lines")
    parser.add_argument("--list", action="store_true", help="name the lines and end")
    parser.add_argument("--congestion", choices=CONTROLS, action="append", help="only this congestion control")
    parser.add_argument("--seconds", type=int, default=20, metavar="S", help="length of a run behind the warm-up (20)")
    parser.add_argument("--json", type=Path, default=ROOT / "target" / "bench-wan.json", metavar="PATH", help="where results go")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else [line.name for line in LINES]
    if unknown := set(names) - {line.name for line in LINES}:
        parser.error(f"there is no line {', '.join(sorted(unknown))}: --list names them")
    options.lines = [line for line in LINES if line.name in names]
    options.congestion = options.congestion or list(CONTROLS)
    return options


if __name__ == "__main__":
    sys.exit(main())
