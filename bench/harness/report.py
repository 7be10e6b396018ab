"""Reads what a wrapped process tells about its connections (crates/report): the memfd `madrigal-report` under /proc/PID/fd."""

from __future__ import annotations

import os
import struct
from typing import Iterable

NAME = "/memfd:madrigal-report"
MAGIC = b"mdr-why\x01"
HEADER = struct.Struct("<8sII Q")
RECORD = struct.Struct("<IIII QQQQ Q 8x")
RECORDS_AT = 4096


class Traffic:
    """Bytes seen in the reports of some processes, added up over samples. Records are used again by later connections: a counter
    that went down belongs to a new one."""

    def __init__(self) -> None:
        self.ring = 0
        self.tcp = 0
        self.bells = 0
        self.missed_bells = 0
        self.reports = 0
        self._last: dict[tuple[int, int], tuple[int, int, int]] = {}

    def clear(self) -> None:
        """Forgets what was added, but not where the counters stand."""
        self.ring = self.tcp = self.bells = self.reports = 0

    def sample(self, pids: Iterable[int], count: bool = True) -> None:
        """Adds what moved since the last sample; `count=False` only remembers where the counters stand."""
        for pid in pids:
            for index, now, missed in _records(pid):
                if index < 0:
                    self.reports += 1
                    self.missed_bells = max(self.missed_bells, missed)
                    continue
                before = self._last.get((pid, index), (0, 0, 0))
                if any(new < old for new, old in zip(now, before)):
                    before = (0, 0, 0)
                self._last[pid, index] = now
                if count:
                    self.ring += now[0] - before[0]
                    self.tcp += now[1] - before[1]
                    self.bells += now[2] - before[2]

    @property
    def by_ring(self) -> bool:
        """Whether most bytes went by rings."""
        return self.ring > self.tcp


def _records(pid: int) -> Iterable[tuple[int, tuple[int, int, int], int]]:
    fd = _open(pid)
    if fd is None:
        return
    with os.fdopen(fd, "rb", buffering=0) as file:
        magic, owner, _, missed = HEADER.unpack(os.pread(fd, HEADER.size, 0))
        if magic != MAGIC or owner != pid:
            return
        yield -1, (0, 0, 0), missed
        for offset, data in _written(fd, os.fstat(file.fileno()).st_size):
            for at in range(0, len(data) - RECORD.size + 1, RECORD.size):
                _, _, _, _, shm_in, shm_out, tcp_in, tcp_out, bells = RECORD.unpack_from(data, at)
                if shm_in or shm_out or tcp_in or tcp_out:
                    yield (offset + at - RECORDS_AT) // RECORD.size, (shm_in + shm_out, tcp_in + tcp_out, bells), 0


def _written(fd: int, size: int) -> Iterable[tuple[int, bytes]]:
    """The parts of the file that were ever written: most of its records never are."""
    at = RECORDS_AT
    while at < size:
        try:
            at = os.lseek(fd, at, os.SEEK_DATA)
        except OSError:
            return
        stop = os.lseek(fd, at, os.SEEK_HOLE)
        yield at, os.pread(fd, stop - at, at)
        at = stop


def _open(pid: int) -> int | None:
    folder = f"/proc/{pid}/fd"
    try:
        for name in sorted(os.listdir(folder), key=int, reverse=True):
            try:
                if not os.readlink(f"{folder}/{name}").startswith(NAME):
                    continue
                fd = os.open(f"{folder}/{name}", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                continue
            if HEADER.unpack(os.pread(fd, HEADER.size, 0))[1] == pid:
                return fd
            os.close(fd)
    except OSError:
        pass
    return None
