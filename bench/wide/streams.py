"""What each connection of a host carries while something else is measured, from the kernel's counters (ss, TCP_INFO)."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from wide.lab import words

PAUSE = 0.5
"""Seconds between two looks."""
WATCH = """
while :; do
    echo at $(date +%s.%N)
    ss -HtinO state established "( dport = :$1 or sport = :$1 )"
    sleep $2
done
"""


@dataclass
class Stream:
    """A connection: its port here, when it was looked at, in seconds since the first look, and the Mbit/s since the look before."""

    port: int
    times: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)


@contextmanager
def watched(host: str, port: str) -> Iterator[list[Stream]]:
    """The host's connections from and to a port; the list is filled at the end."""
    found: list[Stream] = []
    # A pipe that nobody reads would be full soon.
    with tempfile.TemporaryFile("w+") as output:
        watcher = subprocess.Popen(words(host, "sh", "-c", WATCH, "watch", port, str(PAUSE)), stdout=output)
        try:
            yield found
        finally:
            watcher.terminate()
            watcher.wait()
            output.seek(0)
            found.extend(parse(output.read()))


def parse(text: str) -> list[Stream]:
    """The connections of what was printed."""
    found: dict[int, Stream] = {}
    counted: dict[int, tuple[float, int]] = {}
    first = now = 0.0
    for line in text.splitlines():
        if line.startswith("at "):
            now = float(line.split()[1])
            first = first or now
            continue
        ends, acknowledged = re.search(r":(\d+)\s+\S+:(\d+)\s", line), re.search(r"bytes_acked:(\d+)", line)
        if not ends or not acknowledged:
            continue
        # The port that is not the same for all of them.
        port, count = max(map(int, ends.groups())), int(acknowledged[1])
        since, before = counted.get(port, (now - PAUSE, 0))
        counted[port] = now, count
        stream = found.setdefault(port, Stream(port))
        stream.times.append(round(now - first, 2))
        stream.rates.append(round((count - before) * 8 / max(now - since, 0.01) / 1e6, 3))
    return list(found.values())
