"""Mailboxes: the header of a message goes to its receiver, its data lie where they are told to until they are read.

    box = madrigal.Mailbox(runtime, "results")
    print(box.address)                            # goes to the others by any way
    header = box.wait(tag=7)                      # nothing has moved yet
    with box.get(header) as buffer:
        print(header.source, bytes(buffer.memory))

    out = madrigal.Mailbox(runtime, "worker")
    out.put(address, b"data", tag=7, policy="sender")

A `Draft` is written, and sealed to a `Buffer` that processes of one host share: none of them copies it. Mailboxes answer others, and give
them data, while a thread of the process is in a call of a mailbox, and then only.
"""

from __future__ import annotations

import ctypes
import json
import weakref
from ctypes import POINTER, Structure, byref, c_char_p, c_int, c_size_t, c_uint64, c_void_p
from typing import Any, NamedTuple, Optional, Union

from ._handle import Handle, address_of, done, made
from ._library import lib, text
from ._memory import Bytes, lent
from ._waiting import opened_patiently, patiently
from .errors import failed
from .runtime import Runtime

KINDS = ("urgent", "data", "management")
POLICIES = ("receiver", "sender", "elsewhere")
_ANY_KIND = -1


class _Letter(Structure):
    """struct mdg_letter."""

    _fields_ = [("to", POINTER(c_char_p)), ("to_count", c_size_t), ("tag", c_uint64), ("kind", c_int), ("policy", c_int)]


class _Filter(Structure):
    """struct mdg_filter."""

    _fields_ = [("source", c_char_p), ("tag", POINTER(c_uint64)), ("kind", c_int)]


class _Header(Structure):
    """struct mdg_header."""

    _fields_ = [("id", c_uint64), ("tag", c_uint64), ("sequence", c_uint64), ("size", c_uint64), ("kind", c_int), ("policy", c_int),
                ("is_here", c_int)]


class Header(NamedTuple):
    """A message as its receiver sees it, before any data move: `holder` is the node of the process where they lie, "" for this one."""

    id: int
    tag: int
    sequence: int
    size: int
    kind: str
    policy: str
    source: str
    holder: str


class _Memory(Handle):
    """Bytes of the library's, as long as they are open here."""

    __slots__ = ("_lent",)

    def __init__(self, handle: int) -> None:
        super().__init__(handle)
        self._lent: "Optional[weakref.ref[Any]]" = None

    def _view(self) -> memoryview:
        at = c_void_p()
        size = done(lib.mdg_buffer_data(self._handle, byref(at)))
        room = self._lent() if self._lent is not None else None
        if room is None:
            room = _room(size).from_address(at.value) if size else _room(0)()
            # Whoever has the memory has this.
            room.owner = self
            self._lent = weakref.ref(room)
        return memoryview(room).cast("B")

    def close(self) -> None:
        """Gives the memory back. A BufferError while something of Python's still has it."""
        if self._handle and self._lent is not None and self._lent() is not None:
            raise BufferError("the memory of this buffer is in use: let go of what was made of it first")
        super().close()


def _room(size: int) -> Any:
    return type("Room", (ctypes.c_ubyte * size,), {})


class Draft(_Memory):
    """A buffer of `size` bytes, all 0, that is written by this process, and then sealed."""

    __slots__ = ()

    def __init__(self, size: int) -> None:
        super().__init__(made(lib.mdg_buffer_new, size))

    @property
    def memory(self) -> memoryview:
        """Its bytes, to be written."""
        return self._view()

    def seal(self) -> "Buffer":
        """From now on nobody writes it. A BufferError while something of Python's still has its memory."""
        if self._lent is not None and self._lent() is not None:
            raise BufferError("the memory of this draft is in use: let go of what was made of it first")
        done(lib.mdg_buffer_seal(self._handle))
        handle, self._handle = self._handle, 0
        return Buffer(handle)


class Buffer(_Memory):
    """Bytes that nobody writes: of a message that was got, or a `Draft` that was sealed."""

    __slots__ = ()

    @property
    def memory(self) -> memoryview:
        """Its bytes; no copy is made."""
        return self._view().toreadonly()

    @property
    def shared(self) -> bool:
        """Whether it is one memory for all processes of the host that have it."""
        return self.why()["memory"] == "shared"


class Mailbox(Handle):
    """A mailbox, with so many places for each sender and each kind of message."""

    __slots__ = ()

    def __init__(self, runtime: Runtime, name: str, places: int = 256) -> None:
        super().__init__(made(lib.mdg_mailbox_open, runtime._handle, name.encode(), places), runtime)

    @property
    def address(self) -> str:
        """What others put messages to; the program brings it to them."""
        return address_of(self._handle)

    def put(self, to: Union[str, "list[str]"], data: Union[Bytes, Buffer] = b"", tag: int = 0, kind: str = "data", policy: str = "receiver",
            timeout: Optional[float] = None) -> int:
        """Puts a message into one mailbox or several: to how many it went. `kind` is "urgent", "data" or "management". The data lie by `policy` at
        the "receiver", at the "sender", or "elsewhere"; one copy serves all. TimedOut: the text says who does not read, or answer; Refused, Lost."""
        all_to = [to] if isinstance(to, str) else list(to)
        addresses = (c_char_p * len(all_to))(*(one.encode() for one in all_to))
        letter = _Letter(addresses, len(all_to), tag, KINDS.index(kind), POLICIES.index(policy))
        if isinstance(data, Buffer):
            return patiently(lambda wait: lib.mdg_mailbox_put_buffer(self._handle, byref(letter), data._handle, wait), timeout)
        with lent(data) as memory:
            return patiently(lambda wait: lib.mdg_mailbox_put(self._handle, byref(letter), memory.address, memory.size, wait), timeout)

    def list(self, source: Optional[str] = None, tag: Optional[int] = None, kind: Optional[str] = None, most: int = 1024) -> "list[Header]":
        """The headers of messages in it: urgent ones first, each kind as they came. No data move."""
        room = (_Header * most)()
        count = lib.mdg_mailbox_list(self._handle, byref(_filter(source, tag, kind)), room, most)
        return [header for found in room[:done(count)] if (header := self._header(found)) is not None]

    def wait(self, source: Optional[str] = None, tag: Optional[int] = None, kind: Optional[str] = None, timeout: Optional[float] = None) -> Header:
        """Waits for a message, which stays. TimedOut."""
        found, wanted = _Header(), _filter(source, tag, kind)
        while True:
            patiently(lambda wait: lib.mdg_mailbox_wait(self._handle, byref(wanted), wait, byref(found)), timeout)
            header = self._header(found)
            if header is not None:
                return header

    def get(self, header: Union[Header, int], timeout: Optional[float] = None) -> Buffer:
        """Takes a message out: its data, from wherever they lie. TimedOut and Lost, with which it stays; Gone."""
        return Buffer(opened_patiently(lib.mdg_mailbox_get, self._handle, (_number(header),), timeout))

    def drop(self, header: Union[Header, int]) -> None:
        """Takes a message out without its data, which are freed where they lie. Gone."""
        done(lib.mdg_mailbox_drop(self._handle, _number(header)))

    def offer(self, size: int) -> None:
        """This process keeps so many bytes of messages between others, whenever a thread of it is in a call of a mailbox."""
        done(lib.mdg_mailbox_offer(self._handle, size))

    def add_store(self, address: str) -> None:
        """The process of that mailbox offers memory: data that are to lie elsewhere may lie there."""
        done(lib.mdg_mailbox_add_store(self._handle, address.encode()))

    def turn(self, timeout: Optional[float] = None) -> None:
        """Answers others, and gives them data, for that time."""
        from time import monotonic

        end = None if timeout is None else monotonic() + timeout
        while end is None or monotonic() < end:
            done(lib.mdg_mailbox_turn(self._handle, 100_000_000 if end is None else max(0, min(100_000_000, int((end - monotonic()) * 1e9)))))

    def flush(self, timeout: Optional[float] = None) -> None:
        """Waits until what was put has left, and data that lie here were read. TimedOut."""
        patiently(lambda wait: lib.mdg_flush(self._handle, wait), timeout)

    def changes(self) -> "list[dict[str, str]]":
        """What became of those who send to it, since the last call, as `ReceivePort.changes`."""
        code, told = text(lib.mdg_mailbox_changes, self._handle)
        changes: "list[dict[str, str]]" = json.loads(told) if code >= 0 else failed(code)
        return changes

    def _header(self, found: _Header) -> Optional[Header]:
        """None: it was taken out meanwhile, by another thread."""
        code, source = text(lambda *room: lib.mdg_mailbox_source(self._handle, found.id, *room[1:]), 0)
        also, holder = text(lambda *room: lib.mdg_mailbox_holder(self._handle, found.id, *room[1:]), 0)
        if code < 0 or also < 0:
            return None
        return Header(found.id, found.tag, found.sequence, found.size, KINDS[found.kind], POLICIES[found.policy], source, holder)


def _filter(source: Optional[str], tag: Optional[int], kind: Optional[str]) -> _Filter:
    wanted = None if tag is None else ctypes.pointer(c_uint64(tag))
    return _Filter(None if source is None else source.encode(), wanted, _ANY_KIND if kind is None else KINDS.index(kind))


def _number(header: Union[Header, int]) -> int:
    return header if isinstance(header, int) else header.id
