"""Messages among the processes of a group.

    circuit = madrigal.Circuit(runtime, tags=True)
    circuit.join(addresses)                  # those of all nodes, in the same order everywhere
    circuit.send(1, b"a piece", array)
    with circuit.receive() as message:
        print(message.sender, message.take(7))
        message.take_into(room)

A message is taken in the same pieces in which it was sent: neither lengths nor modes travel, so the first piece says what follows where
that varies. Threads may send and receive at the same time.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_uint64
from types import TracebackType
from typing import Optional, Sequence

from ._handle import Handle, done, made
from ._library import lib
from ._memory import Bytes, Lent, lent
from ._message import Borrowing
from ._waiting import opened_patiently, patiently
from .runtime import Runtime

# Bytes of a node's address.
ADDRESS = 64
# Any node; any tag.
ANY = -1
ANY_TAG = (1 << 64) - 1

_TAGS = 1
_SAFER, _CHEAPER, _EXPRESS = 0, 2, 3


class Circuit(Handle):
    """A place in a group. With `tags`, which all nodes give or none, messages carry a number of 64 bits that receivers ask for."""

    __slots__ = ("rank", "size")

    def __init__(self, runtime: Runtime, tags: bool = False) -> None:
        super().__init__(made(lib.mdg_circuit_open, runtime._handle, _TAGS if tags else 0), runtime)
        self.rank, self.size = -1, 0

    @property
    def address(self) -> bytes:
        """This node's address, ADDRESS bytes; the program brings all addresses of a group to all its nodes by whatever it has."""
        room = ctypes.create_string_buffer(ADDRESS)
        done(lib.mdg_circuit_address(self._handle, room))
        return room.raw

    def join(self, addresses: Sequence[bytes]) -> int:
        """Joins the group of these addresses, once; returns this node's rank, its place there. Nothing is sent yet."""
        if wrong := next((one for one in addresses if len(one) != ADDRESS), None):
            raise ValueError(f"an address has {ADDRESS} bytes, not {len(wrong)}")
        self.rank = done(lib.mdg_circuit_join(self._handle, b"".join(addresses), len(addresses)))
        self.size = len(addresses)
        return self.rank

    def send(self, to: int, *pieces: Bytes, tag: int = 0) -> None:
        """Sends a message of these pieces to the node of rank `to`, and waits until it has left, as a blocking socket does. The memory is lent
        meanwhile, and pieces longer than 4 KiB are not copied; for those it waits until the receiver has them. Lost if the node is gone:
        the text says what was tried."""
        with self.pack(to, tag) as message:
            for piece in pieces:
                message.put(piece)

    def flush(self, timeout: Optional[float] = None) -> None:
        """Waits until whatever was sent has left. What `Packing.send` sends may wait in this process for a path or for room, and leaves
        while somebody is in a call of a Circuit. TimedOut: nothing was lost."""
        patiently(lambda wait: lib.mdg_flush(self._handle, wait), timeout)

    def pack(self, to: int, tag: int = 0) -> "Packing":
        """A message that is packed piece by piece: sent at the end of the `with`, as by `send`, or not at all if that ends by an exception."""
        return Packing(made(lib.mdg_begin_packing, self._handle, to, tag), self)

    def receive(self, sender: int = ANY, tag: int = 0, ignore: int = ANY_TAG, timeout: Optional[float] = None) -> "Unpacking":
        """Waits for a message of a node, or of ANY, whose tag equals `tag` but for the bits of `ignore` (by default any); the one that came
        first of those that fit. TimedOut; Lost if that node is gone; Closed if another thread closes the Circuit."""
        return Unpacking(opened_patiently(lib.mdg_begin_unpacking, self._handle, (sender, tag, ignore), timeout), self)


class Packing(Borrowing):
    """A message that is being packed."""

    __slots__ = ("_circuit",)

    def __init__(self, handle: int, of: Circuit) -> None:
        super().__init__(handle, of)
        self._circuit = of

    def put(self, piece: Bytes, copy: bool = False) -> None:
        """Adds a piece. With `copy` its memory may change at once; else it must stay as it is until the message is sent."""
        memory = lent(piece)
        code = lib.mdg_pack(self._handle, memory.address, memory.size, _SAFER if copy else _CHEAPER)
        if copy or code < 0:
            memory.release()
        else:
            self._lent.append(memory)
        done(code)

    def send(self) -> None:
        """Sends it, without waiting until it has left (`Circuit.flush`), but for the receiver of a piece that is long."""
        self._finish(lib.mdg_end_packing)

    def __exit__(self, kind: Optional[type[BaseException]], value: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        if kind is None and self._handle:
            self.send()
            self._circuit.flush()
        self.close()


class Unpacking(Borrowing):
    """A message that is being taken apart: at the end of the `with` whatever was taken is there."""

    __slots__ = ("sender", "tag")

    def __init__(self, handle: int, of: Circuit) -> None:
        super().__init__(handle, of)
        sender, tag = c_int(), c_uint64()
        done(lib.mdg_sender(handle, byref(sender), byref(tag)))
        self.sender, self.tag = sender.value, tag.value

    def take(self, size: int) -> bytes:
        """The next piece, which has so many bytes. Mismatch if the sender sent other pieces; Lost."""
        room = bytearray(size)
        self._take(Lent(room, writable=True), _EXPRESS)
        return bytes(room)

    def take_into(self, room: Bytes, later: bool = False) -> None:
        """The next piece, into an object's own memory, without a copy. With `later` it is there when the message ends, which is faster where
        several long ones follow each other."""
        self._take(Lent(room, writable=True), _CHEAPER if later else _EXPRESS)

    def _take(self, memory: Lent, mode: int) -> None:
        code = lib.mdg_unpack(self._handle, memory.address, memory.size, mode)
        if code >= 0 and mode == _CHEAPER:
            self._lent.append(memory)
        else:
            memory.release()
        done(code)

    def end(self) -> None:
        """Waits until every piece is there."""
        self._finish(lib.mdg_end_unpacking)

    def __exit__(self, kind: Optional[type[BaseException]], value: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        if kind is None and self._handle:
            self.end()
        self.close()
