"""What memory a process has, and whether it goes on growing."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

MIB = 1024
"""In the unit of everything here, kilobytes."""


@dataclass(frozen=True)
class Sample:
    """One look at a process and what it started."""

    at: float
    own: int
    """VmRSS without what is shared."""
    shared: int
    """RssShmem."""
    rings: int
    """Of files `memfd:madrigal-*` what is mapped and there."""
    mappings: int
    """How many mappings of such files there are."""
    descriptors: int


def look(pid: int, at: float) -> Sample | None:
    """Looks at a process; None when it is gone. Descriptors that programs of other users have are not to be seen, and count as none."""
    try:
        with open(f"/proc/{pid}/status") as file:
            status = file.read()
        with open(f"/proc/{pid}/smaps", errors="replace") as file:
            rings, mappings = ring_pages(file.read())
    except OSError:
        return None
    try:
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        descriptors = 0
    whole, shared = _field(status, "VmRSS"), _field(status, "RssShmem")
    return Sample(at, whole - shared, shared, rings, mappings, descriptors)


def ring_pages(smaps: str) -> tuple[int, int]:
    """Kilobytes that are there, and how many mappings, of Madrigal's memory files."""
    pages = mappings = 0
    ours = False
    for line in smaps.splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            ours = "memfd:madrigal" in line
            mappings += ours
        elif ours and line.startswith("Rss:"):
            pages += int(line.split()[1])
    return pages, mappings


def _field(status: str, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", status, re.MULTILINE)
    return int(found[1]) if found else 0


@dataclass
class History:
    """Of one side, while it ran."""

    samples: list[Sample] = field(default_factory=list)

    def peak(self, what: str) -> int:
        """The most there was."""
        return max((getattr(sample, what) for sample in self.samples), default=0)

    def final(self, what: str) -> int:
        """What there was at last."""
        return getattr(self.samples[-1], what) if self.samples else 0

    def growing(self, heap: int = 8) -> str:
        """What was still growing in the last third; empty when nothing was. The first third may fill caches, arenas and heaps.

        A leak grows with the number of connections, so with time; the most of the last third is compared with the most of the second. What
        is allowed beside is what heaps do when nothing leaks: little for shared memory, whose use has a reason in each byte, more for
        memory of the program's own: `heap` mebibytes. Shared memory that came back at last has not leaked: there were more connections at a
        time, as there are on a machine that is busy with something else.
        """
        if len(self.samples) < 9 or self.samples[-1].at - self.samples[0].at < 3:
            return ""
        begin, end = self.samples[0].at, self.samples[-1].at
        told = []
        for what, part, least in (("own", 0.25, heap * MIB), ("shared", 0.15, 8 * MIB), ("rings", 0.15, 8 * MIB), ("mappings", 0.25, 16), ("descriptors", 0.5, 64)):
            second = [getattr(sample, what) for sample in self.samples if begin + (end - begin) / 3 <= sample.at < begin + (end - begin) * 2 / 3]
            last = [getattr(sample, what) for sample in self.samples if sample.at >= begin + (end - begin) * 2 / 3]
            came_back = what in ("shared", "rings") and self.final(what) < max(second, default=0) / 2
            if second and last and not came_back and max(last) > max(second) + max(part * max(second), least):
                told.append(f"{what} {max(second)} -> {max(last)}")
        return ", ".join(told)
