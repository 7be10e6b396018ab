"""What a line carries: plain TCP, and the same command under Madrigal."""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import dataclass, field
from functools import partial

from wide import jobs, streams, tools
from wide.lab import COMMAND, HOSTS, ROOT, SECOND, WRAP, await_link, connections, lab_of, on, use, words
from wide.lines import Line
from wide.programs import ANSWERER, ASKER, DATAGRAM, GIVER, LATE, QUESTION_PORT, RECEIVER, RULES, SENDER, TAKER
from wide.streams import Stream
from wide.tools import Other, iperf


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
    streams: dict[str, list[Stream]] = field(default_factory=dict)
    """What each connection carried while it was measured."""
    others: list[Other] = field(default_factory=list)
    """What other tools carried."""

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


def measure(line: Line, congestion: str, seconds: int, others: bool) -> Result:
    """One line with one congestion control, in a lab of its own; with other tools, too."""
    with lab_of(line.lab()):
        if line.beside:
            for host, other in (("a1", "b1"), ("b1", "a1")):
                own = SECOND[host][:-1]
                on(host, "ip", "route", "add", f"{SECOND[other][:-1]}0/24", "via", f"{own}1")
        for host in HOSTS:
            use(host, congestion)
        await_link()
        if line.tolerance:
            return _datagrams(line, congestion, seconds)
        if line.urgent:
            return _urgent(line, congestion, seconds)
        if line.job:
            return _job(line, congestion, seconds)
        # As for a transfer that lasts: the number of connections is found by then.
        carry = partial(_send, line.data) if line.data else iperf
        with streams.watched("a1", "5201") as plain_streams:
            plain = carry([], HOSTS["b1"], seconds, 4)
        with streams.watched("a1", "7780") as link_streams:
            madrigal = carry(WRAP, "b1", seconds, 15)
        least = line.least.get(congestion)
        result = Result(line.name, congestion, plain, madrigal, connections(), least and least * (plain if line.data else 1))
        result.streams = {"plain": plain_streams, "madrigal": link_streams}
        # What they send is not compressed.
        if others and not line.data:
            result.others = tools.measure(madrigal, congestion, seconds)
        return result


def _job(line: Line, congestion: str, seconds: int) -> Result:
    """Sweeps a second of a job."""
    with jobs.hosts_that_start_programs() as folder:
        plain, madrigal = (jobs.sweeps(folder, wrap, seconds, warm_up) for wrap, warm_up in (([], 4), (WRAP, 15)))
    return Result(line.name, congestion, plain, madrigal, connections(), line.least[congestion] * plain)


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
            raise SystemExit("datagrams do not go by QUIC after 10 s")
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
    plain = iperf([], HOSTS["b1"], seconds, 4)
    alone = _ask(seconds)
    servers = [subprocess.Popen(words("b1", "iperf3", "-s", "-1", "-p", port), stdout=subprocess.DEVNULL) for port in ("5201", "5202")]
    try:
        time.sleep(1)
        # Questions are asked when slow start is over, and until before the transfers end.
        transfers = [subprocess.Popen(words("a1", *WRAP, "iperf3", "-c", "b1", "-p", port, "-t", str(seconds + 12), "-O", "10", "-J"),
                                      stdout=subprocess.PIPE, text=True) for port in ("5201", "5202")]
        time.sleep(10)
        late = _ask(seconds)
        told = [json.loads(transfer.communicate(timeout=60)[0]) for transfer in transfers]
    finally:
        for server in servers:
            server.terminate()
            server.wait()
    carried = sum(float(one["end"]["sum_received"]["bits_per_second"]) for one in told) / 1e6
    return Result(line.name, congestion, plain, carried, connections(), line.least.get(congestion), late, 2 * alone)


def _ask(seconds: int) -> float:
    """Within how many milliseconds 99 of 100 urgent questions were answered."""
    port = str(QUESTION_PORT)
    server = subprocess.Popen(words("b1", "python3", "-c", ANSWERER, port), stdout=subprocess.PIPE, text=True)
    try:
        server.stdout.readline()
        return float(on("a1", *WRAP, "python3", "-c", ASKER, "b1", port, str(seconds)))
    finally:
        server.kill()
        server.wait()
