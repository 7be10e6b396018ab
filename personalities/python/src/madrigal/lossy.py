"""Links of messages of which a part may be lost: for data that is better in time than whole.

    classes = [madrigal.MessageClass(tolerance=100, granularity=188)]
    acceptor = madrigal.LossyAcceptor(runtime, "vrp/udp://192.0.2.7:0", classes)
    link = acceptor.accept()
    message = link.receive()
    print(len(message.data), message.lost)       # a tenth may be lost, in records of 188 bytes

    link = madrigal.LossyLink.connect(runtime, "vrp/udp://192.0.2.7:4000", classes)
    link.send(frame, within=0.2)

Both ends name the same classes, and show certificates of one grid and one user (`madrigal login`). Both are told of the same losses. A process
that does not turn its engine for a minute, by any call that waits, is taken for gone.
"""

from __future__ import annotations

from ctypes import Array, c_uint32
from typing import NamedTuple, Optional, Sequence

from ._handle import Handle, address_of, done, made
from ._library import lib
from ._memory import Bytes, lent
from ._waiting import TIMED_OUT, nanoseconds, opened_patiently, patiently, slices
from .errors import failed
from .runtime import Runtime

# MDG_FATE_FAILED.
_FAILED = 2
# MDG_EGONE: of a receive, the end.
_GONE = -17
# MDG_ETOOLONG: the message stays.
_TOO_LONG = -19
# The longest message.
_LONGEST = (16 << 20) - 1


class MessageClass(NamedTuple):
    """How much of a kind of messages may be lost."""

    tolerance: int = 0
    """Of a thousand bytes; 0: nothing may be lost, 1000: nothing is sent again."""
    window: int = 1 << 20
    """Of how many bytes that follow each other that holds, up to 16 MiB."""
    granularity: int = 1
    """Pieces that are lost begin at a multiple of it, up to 1000: the length of a record."""
    must: int = 0
    """So many bytes at the front of each message are never lost."""


class Fate(NamedTuple):
    """What became of a message that was sent."""

    kind: int
    """The number of its class."""
    number: int
    """Its number in the class."""
    lost: Optional[list[tuple[int, int]]]
    """What of it was lost: from the first byte up to the second. None: it failed."""


class LossyMessage(NamedTuple):
    """A message that came."""

    kind: int
    """The number of its class."""
    number: int
    """Its number in the class: those of a class come in order."""
    data: bytes
    """Its bytes; those that are lost are 0. Of one that failed there are none."""
    lost: Optional[list[tuple[int, int]]]
    """What of it is lost, as the sender is told. None: it failed."""


class LossyAcceptor(Handle):
    """A place where links of messages arrive."""

    __slots__ = ()

    def __init__(self, runtime: Runtime, at: str, classes: Sequence[MessageClass] = ()) -> None:
        """Listens at `vrp/udp://ADDRESS:PORT` (port 0: the kernel's choice). Without classes there is one, of `vrp(N)/udp://...` with the
        tolerance N."""
        super().__init__(made(lib.mdg_lossy_listen, runtime._handle, at.encode(), _numbers(classes), len(classes)), runtime)

    @property
    def address(self) -> str:
        """What others connect to."""
        return address_of(self._handle)

    def accept(self, timeout: Optional[float] = None) -> "LossyLink":
        """Waits for the next link. TimedOut; Closed if another thread closes the acceptor."""
        return LossyLink(opened_patiently(lib.mdg_lossy_accept, self._handle, (), timeout), self._of)


class LossyLink(Handle):
    """A link of messages. Closed, what was sent goes on for as long as the engine is turned."""

    __slots__ = ("_lost", "_room")

    def __init__(self, handle: int, of: Optional[Handle]) -> None:
        super().__init__(handle, of)
        self._lost = 64
        self._room = 64 << 10

    @classmethod
    def connect(cls, runtime: Runtime, to: str, classes: Sequence[MessageClass] = (), timeout: Optional[float] = None) -> "LossyLink":
        """Connects to where a process listens with the same classes. Without a time it has 15 s. Refused, Unreachable (the text says why,
        as other classes or another user), TimedOut; ArgumentError if the text is no address."""
        return cls(made(lib.mdg_lossy_connect, runtime._handle, to.encode(), _numbers(classes), len(classes), nanoseconds(timeout)), runtime)

    @property
    def address(self) -> str:
        """The peer's address."""
        return address_of(self._handle)

    def send(self, data: Bytes, kind: int = 0, within: Optional[float] = None, timeout: Optional[float] = None) -> int:
        """Sends a message of a class, 1 byte to 16 MiB, which is copied; its number in the class. It is to be there within so many seconds,
        else it may fail. Waits for room; TimedOut if there was none. Gone."""
        with lent(data) as memory:
            life = nanoseconds(within)
            return patiently(lambda wait: lib.mdg_lossy_send(self._handle, kind, memory.address, memory.size, life, wait), timeout)

    def receive(self, timeout: Optional[float] = None) -> Optional[LossyMessage]:
        """Waits for the next message; None at the end. TimedOut; Reset if the peer died."""
        for wait, last in slices(timeout):
            about, lost, room = (c_uint32 * 4)(), (c_uint32 * (2 * self._lost))(), bytearray(self._room)
            with lent(room) as memory:
                code = lib.mdg_lossy_receive(self._handle, memory.address, memory.size, wait, about, lost, self._lost)
            if code == _TOO_LONG:
                # It stays, and comes at once.
                self._more(about[3])
                self._room = _LONGEST
                return self.receive(timeout)
            if code == _GONE:
                return None
            if code >= 0:
                data, self._room = bytes(memoryview(room)[:code]), min(self._room, 64 << 10)
                return LossyMessage(about[0], about[1], data, _spans(about, lost))
            if code != TIMED_OUT or last:
                failed(code)
        raise AssertionError("slices end with a last one")

    def settled(self, timeout: Optional[float] = None) -> Fate:
        """Waits for what became of a message that was sent; each is told of once, and of those that nobody asks about the last 65,536.
        TimedOut; Reset if the link is over."""
        for wait, last in slices(timeout):
            about, lost = (c_uint32 * 4)(), (c_uint32 * (2 * self._lost))()
            code = lib.mdg_lossy_settled(self._handle, wait, about, lost, self._lost)
            if code == _TOO_LONG:
                # It stays, and is told at once.
                self._more(about[3])
                return self.settled(timeout)
            if code >= 0:
                return Fate(about[0], about[1], _spans(about, lost))
            if code != TIMED_OUT or last:
                failed(code)
        raise AssertionError("slices end with a last one")

    def _more(self, lost: int) -> None:
        """Makes room for so many pieces that are lost."""
        self._lost = max(self._lost, lost)

    def flush(self, timeout: Optional[float] = None) -> None:
        """Waits until it is known of every message what became of it. TimedOut; Reset if of some it never will be."""
        patiently(lambda wait: lib.mdg_lossy_flush(self._handle, wait), timeout)


def _numbers(classes: Sequence[MessageClass]) -> "Array[c_uint32]":
    return (c_uint32 * (4 * len(classes)))(*(number for one in classes for number in one))


def _spans(about: "Array[c_uint32]", lost: "Array[c_uint32]") -> Optional[list[tuple[int, int]]]:
    if about[2] == _FAILED:
        return None
    return [(lost[2 * at], lost[2 * at + 1]) for at in range(about[3])]
