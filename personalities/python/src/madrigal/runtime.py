"""The engine and the drivers of a process, and links between two processes, for programs that wait in calls.

    with madrigal.Runtime() as runtime:
        link = runtime.connect("tcp://192.0.2.7:4000", timeout=10)
        link.write(b"hello")
        print(link.read(100))

Times are seconds; None never passes, 0 only looks. A call that waits lets other threads of Python's run, and lets Ctrl-C end it. Whatever
fails raises a `madrigal.Error`.
"""

from __future__ import annotations

import errno
from ctypes import byref, c_int64
from typing import Optional

from ._handle import Handle, address_of, done, made
from ._library import NO_HANDLER, lib
from ._memory import Bytes, Lent, lent
from ._waiting import TIMED_OUT, first, opened_patiently, patiently, rest, slices
from .errors import TimedOut, failed


class Runtime(Handle):
    """The engine and the drivers, configured by the environment's MADRIGAL_* variables. What was opened from it is closed with it."""

    __slots__ = ()

    def __init__(self) -> None:
        """Nothing listens, and no thread is started. A process that forks later has children that cannot use it (`Forked`)."""
        super().__init__(made(lib.mdg_runtime_open))

    def listen(self, at: str) -> "Acceptor":
        """Listens at an address: `tcp://ADDRESS:PORT` (port 0: the kernel's choice), `shm://NAME` among processes of one user on one host,
        `loopback://NAME` inside of this process. Does not wait."""
        return Acceptor(made(lib.mdg_listen, self._handle, at.encode()), self)

    def serve(self, name: str) -> "Acceptor":
        """Listens by every driver that works here, on this host only. The acceptor's `address` is a card, one word to hand to others: who
        connects to it goes by the best path there is. Does not wait."""
        return Acceptor(made(lib.mdg_serve, self._handle, name.encode()), self)

    def connect(self, to: str, timeout: Optional[float] = None) -> "Link":
        """Connects to an address or a card. Without a time, each path has 15 s.

        Refused, Unreachable, TimedOut, Denied; ArgumentError if the text is no address.
        """
        operation = made(lib.mdg_post_connect, self._handle, to.encode(), NO_HANDLER, None)
        result = c_int64()
        try:
            for wait, _ in slices(timeout):
                if done(lib.mdg_wait(operation, wait, byref(result))):
                    operation = 0
                    return Link(done(result.value), self)
        finally:
            if operation:
                lib.mdg_cancel(operation)
        raise TimedOut(errno.ETIMEDOUT, f"cannot connect to {to}: not within {timeout:g} s")

    def set_weight(self, kind: str, weight: int) -> None:
        """How much the sources of a class (`shm`, `tcp`, `loopback`, `descriptors`, `timers`) may do each turn of the engine."""
        done(lib.mdg_set_weight(self._handle, kind.encode(), weight))

    def set_spin(self, seconds: float) -> None:
        """The longest time that a waiting thread looks again and again before it sleeps; 50 microseconds unless set."""
        done(lib.mdg_set_spin(self._handle, int(seconds * 1e9)))

    def work_done(self, kind: str) -> int:
        """How much the sources of a class have done so far."""
        return done(lib.mdg_work_done(self._handle, kind.encode()))


class Acceptor(Handle):
    """A place where links arrive."""

    __slots__ = ()

    @property
    def address(self) -> str:
        """What others connect to: an address, or a card."""
        return address_of(self._handle)

    def accept(self, timeout: Optional[float] = None) -> "Link":
        """Waits for the next link. TimedOut; Closed if another thread closes the acceptor."""
        return Link(opened_patiently(lib.mdg_accept, self._handle, (), timeout), self._of)


class Link(Handle):
    """A stream of bytes between two processes. Threads may share it; reads complete in the order they began."""

    __slots__ = ()

    @property
    def address(self) -> str:
        """The peer's address as far as the driver knows it."""
        return address_of(self._handle)

    def read(self, most: int = 65536, timeout: Optional[float] = None) -> bytes:
        """Waits until there is something, and returns at most so many bytes; none at the end of the stream. TimedOut, Reset, Closed."""
        room = bytearray(most)
        size = self.read_into(room, timeout)
        return bytes(memoryview(room)[:size])

    def read_into(self, room: Bytes, timeout: Optional[float] = None) -> int:
        """As `read`, into an object's own memory, without a copy; how many bytes."""
        with Lent(room, writable=True) as memory:
            return self._read(memory.address, memory.size, timeout)

    def read_exactly(self, room: Bytes, timeout: Optional[float] = None) -> None:
        """Fills an object's own memory. EOFError if the stream ends before; TimedOut for each read that waits longer than the time."""
        with Lent(room, writable=True) as memory:
            read, handle, wait = lib.mdg_read, self._handle, first(timeout)
            at, end = memory.address, memory.address + memory.size
            while at < end:
                size = read(handle, at, end - at, wait)
                if size < 0:
                    size = self._read_on(size, at, end - at, timeout)
                if not size:
                    raise EOFError(f"the stream ended {end - at} bytes early")
                at += size

    def _read(self, address: int, size: int, timeout: Optional[float]) -> int:
        code: int = lib.mdg_read(self._handle, address, size, first(timeout))
        return code if code >= 0 else self._read_on(code, address, size, timeout)

    def _read_on(self, code: int, address: int, size: int, timeout: Optional[float]) -> int:
        """Behind a first slice that got nothing, with this code."""
        left = rest(timeout)
        if code != TIMED_OUT or (left is not None and left <= 0):
            failed(code)
        return patiently(lambda wait: lib.mdg_read(self._handle, address, size, wait), left)

    def write(self, data: Bytes, timeout: Optional[float] = None) -> int:
        """Waits until all bytes were taken; how many were, which is less only if the time passed. TimedOut if none were, Gone, Closed.

        The memory is lent meanwhile, not copied. Bytes that were taken are not yet the peer's.
        """
        with lent(data) as memory:
            code: int = lib.mdg_write(self._handle, memory.address, memory.size, first(timeout))
            if code == memory.size:
                return code
        if code < 0 and code != TIMED_OUT:
            failed(code)
        left, taken = rest(timeout), max(0, code)
        if left is None or left > 0:
            with Lent(data) as memory:
                taken = self._write_rest(memory, taken, left)
        return taken if taken else failed(TIMED_OUT)

    def _write_rest(self, memory: Lent, taken: int, timeout: Optional[float]) -> int:
        for wait, _ in slices(timeout):
            code = lib.mdg_write(self._handle, memory.address + taken, memory.size - taken, wait)
            if code < 0 and code != TIMED_OUT:
                failed(code)
            taken += max(0, code)
            if taken == memory.size:
                break
        return taken
