"""Pools: processes find each other by a name, and are told in one order who joins, leaves, dies and is elected.

    pool = madrigal.Pool(runtime, "render", blob=port.address.encode())
    master = pool.elect("master")
    if master == pool.id:
        ...
    for event in pool.events():
        print(event)

By this user's daemon of this host, which `madrigal up` starts; the pool is the same on all hosts of its grid.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char, c_int, c_int64, c_uint64
from typing import Callable, Iterable, Iterator, NamedTuple, Optional, Union

from ._handle import Handle, done, made
from ._library import lib
from ._waiting import nanoseconds, patiently
from .errors import Gone, TimedOut, failed
from .runtime import Runtime

_OPEN, _LAUNCHED, _ITSELF = 0, -1, -1
_FOLLOWED, _FOR_LIFE = 0, 1
_TEXT = 4104
_KINDS = ("", "joined", "closed", "left", "died", "elected", "vacant", "set", "signal", "terminated", "missed")


class _Event(ctypes.Structure):
    _fields_ = [("number", c_uint64), ("member", c_int64), ("count", c_uint64), ("kind", c_int), ("text", c_char * _TEXT)]


class PoolEvent(NamedTuple):
    """Something that changed. `kind` is "joined" (`text` is the location), "closed", "left", "died", "elected" (`member` won the election
    `text`), "vacant" (the winner of `text` is gone), "set" (the attribute `text` of `member`, or of the pool), "signal" (`member` sends
    `text`), "terminated", or "missed": `count` events were not taken in time. `number` is its place in the order, the same for all."""

    kind: str
    number: int
    member: Optional[int]
    text: str
    count: int


class Pool(Handle):
    """This process's place in a pool. It leaves by `close()` or at the end of a `with`; if it ends without that, it has died.

    `size` is None (anybody joins at any time), how many members there are to be, or "launched": as many as the launcher has started, each
    with its rank there. With a size the constructor waits until all have joined: TimedOut; Refused for who comes later. `blob` is what
    others find by `blob(member)`, 4,096 bytes at most."""

    __slots__ = ()

    def __init__(
        self,
        runtime: Runtime,
        name: str,
        size: Union[None, int, str] = None,
        blob: bytes = b"",
        timeout: Optional[float] = None,
    ) -> None:
        number = _OPEN if size is None else _LAUNCHED if size == "launched" else int(size)
        super().__init__(made(lib.mdg_pool_join, runtime._handle, name.encode(), number, blob, len(blob), 0), runtime)
        try:
            patiently(lambda wait: lib.mdg_pool_joined(self._handle, wait), timeout)
        except BaseException:
            self.close()
            raise

    @property
    def id(self) -> int:
        """This process's id in the pool: how many joined before it."""
        return done(lib.mdg_pool_id(self._handle))

    @property
    def members(self) -> list[int]:
        """The ids of all living members, in the order in which they joined."""
        room = 16
        while True:
            ids = (c_int64 * room)()
            count = done(lib.mdg_pool_members(self._handle, ids, room))
            if count <= room:
                return list(ids[:count])
            room = count

    def rank(self, member: Optional[int] = None) -> int:
        """The rank of a member, of this one by default, in a pool with a size."""
        return done(lib.mdg_pool_rank(self._handle, self.id if member is None else member))

    def location(self, member: int) -> str:
        """Where a member is: "host@site"."""
        return _bytes(lambda buffer, room: lib.mdg_pool_location(self._handle, member, buffer, room)).decode()

    def blob(self, member: int) -> bytes:
        """What a member brought along."""
        return _bytes(lambda buffer, room: lib.mdg_pool_blob(self._handle, member, buffer, room))

    def elect(self, name: str, for_life: bool = False, timeout: Optional[float] = None) -> int:
        """Wants to win an election: the winner's id, which may be `id`. Never two are winners at once. When the winner has left or died, who
        asks next wins, unless it is one `for_life` of the pool. Behind TimedOut this process is a candidate still, and may have won."""
        after = _FOR_LIFE if for_life else _FOLLOWED
        return patiently(lambda wait: lib.mdg_pool_elect(self._handle, name.encode(), after, wait, None), timeout)

    def winner(self, name: str, timeout: Optional[float] = None) -> int:
        """Waits until an election has a winner, and is no candidate."""
        return patiently(lambda wait: lib.mdg_pool_winner(self._handle, name.encode(), wait), timeout)

    def signal(self, text: str, to: Iterable[int] = (), timeout: Optional[float] = None) -> None:
        """Sends a text to members, or to all."""
        ids = list(to)
        done(lib.mdg_pool_signal(self._handle, (c_int64 * len(ids))(*ids), len(ids), text.encode(), nanoseconds(timeout)))

    def set(self, key: str, value: Optional[bytes], own: bool = False, timeout: Optional[float] = None) -> None:
        """Sets an attribute of the pool, or of this member; None takes it away."""
        done(lib.mdg_pool_set(self._handle, own, key.encode(), value, len(value or b""), nanoseconds(timeout)))

    def get(self, key: str, member: Optional[int] = None) -> Optional[bytes]:
        """An attribute of the pool, or of a member; None where there is none."""
        of = _ITSELF if member is None else member
        try:
            return _bytes(lambda buffer, room: lib.mdg_pool_get(self._handle, of, key.encode(), buffer, room))
        except Gone:
            return None

    def suspect(self, member: int, timeout: Optional[float] = None) -> None:
        """Has a member checked that may be dead: if it is, or its host does not answer within 1.5 s, all are told that it died."""
        done(lib.mdg_pool_suspect(self._handle, member, nanoseconds(timeout)))

    def terminate(self, timeout: Optional[float] = None) -> None:
        """Ends the pool for all: nobody joins any more, and `wait_terminated` of all returns."""
        done(lib.mdg_pool_terminate(self._handle, nanoseconds(timeout)))

    def wait_terminated(self, timeout: Optional[float] = None) -> None:
        """Waits until a member has terminated the pool."""
        patiently(lambda wait: lib.mdg_pool_wait_terminated(self._handle, wait), timeout)

    def next_event(self, timeout: Optional[float] = None) -> PoolEvent:
        """The next event; TimedOut if none came in time. The first ones tell what there was when this process joined."""
        event = _Event()
        patiently(lambda wait: lib.mdg_pool_next(self._handle, wait, byref(event)), timeout)
        member = None if event.member < 0 else event.member
        return PoolEvent(_KINDS[event.kind], event.number, member, event.text.decode(), event.count)

    def events(self, timeout: Optional[float] = None) -> Iterator[PoolEvent]:
        """Event after event, until none came for that time."""
        while True:
            try:
                yield self.next_event(timeout)
            except TimedOut:
                return

    def leave(self, timeout: Optional[float] = None) -> None:
        """Leaves, and waits until that has its place in the order; `close` does not wait."""
        done(lib.mdg_pool_leave(self._handle, nanoseconds(timeout)))

    def fileno(self) -> int:
        """A descriptor that is readable while `next_event(0)` has an event, and sometimes when it has none."""
        return done(lib.mdg_pool_fd(self._handle))


def _bytes(function: Callable[[ctypes.Array[c_char], int], int]) -> bytes:
    """What a call copies, whose text may end with a nul beside it."""
    room = 4097
    buffer = ctypes.create_string_buffer(room)
    length = function(buffer, room)
    return buffer.raw[:length] if length >= 0 else failed(length)
