"""Typed messages, one way, from send ports to receive ports.

    port = madrigal.ReceivePort(runtime, "results", "unit=metre")
    print(port.address)                          # goes to the others by any way
    with port.receive() as message:
        print(message.sender, message.take(), message.take())

    out = madrigal.SendPort(runtime, "worker", "unit=metre")
    out.connect(address)
    out.send(7, numpy_array)

A send port sends to every receive port that it is connected to; only ports of the same type connect. Ports answer others while a thread of
the process is in a call of a port, and then only.
"""

from __future__ import annotations

import array
import ctypes
import json
from ctypes import byref, c_int, c_size_t
from types import TracebackType
from typing import Any, Optional, Union

from ._handle import Handle, address_of, done, made
from ._library import lib, text
from ._memory import Bytes, Lent
from ._message import Borrowing
from ._waiting import opened_patiently, patiently
from .errors import failed
from .runtime import Runtime

# The kinds of numbers, by their codes in madrigal.h; the letters that array.array has for them.
_INT8, _INT64, _FLOAT64 = 1, 7, 10
_CTYPES = {1: ctypes.c_int8, 2: ctypes.c_uint8, 3: ctypes.c_int16, 4: ctypes.c_uint16, 5: ctypes.c_int32, 6: ctypes.c_uint32,
           7: ctypes.c_int64, 8: ctypes.c_uint64, 9: ctypes.c_float, 10: ctypes.c_double}
_LETTERS = {1: "b", 2: "B", 3: "h", 4: "H", 5: "i", 6: "I", 7: "q", 8: "Q", 9: "f", 10: "d"}
_SIGNED, _UNSIGNED, _FLOATS = {1: 1, 2: 3, 4: 5, 8: 7}, {1: 2, 2: 4, 4: 6, 8: 8}, {4: 9, 8: 10}
_SAFER, _CHEAPER = 0, 2
_NOTHING, _NUMBER, _ARRAY, _TEXT, _BEGIN, _END = range(6)

Value = Union[int, float, str, "array.array[Any]"]


def _kind(view: memoryview) -> int:
    """The kind of a buffer's numbers. A TypeError for what is none of them, or lies in the other order of bytes."""
    letter = view.format.lstrip("@=<")
    kinds = _SIGNED if letter in "bhilq" else _UNSIGNED if letter in "BHILQc?" else _FLOATS if letter in "fd" else {}
    kind = kinds.get(view.itemsize) if len(letter) == 1 else None
    if kind is None:
        raise TypeError(f"numbers of format {view.format!r} are none that a message carries")
    return kind


class ReceivePort(Handle):
    """A named port where messages arrive. `type` is what send ports must have, too: "key=value", several with commas between them."""

    __slots__ = ()

    def __init__(self, runtime: Runtime, name: str, type: str = "") -> None:
        super().__init__(made(lib.mdg_receive_port_open, runtime._handle, name.encode(), type.encode()), runtime)

    @property
    def address(self) -> str:
        """What send ports connect to; the program brings it to them."""
        return address_of(self._handle)

    def receive(self, timeout: Optional[float] = None) -> "Incoming":
        """Waits for a message of any send port; those of one send port come in order. TimedOut; Busy while one is being read."""
        return Incoming(opened_patiently(lib.mdg_port_receive, self._handle, (), timeout), self)

    def changes(self) -> list[dict[str, str]]:
        """What became of connections since the last call: "change" is "connected", "left" or "lost", "port" the send port's name, and of
        one lost "why" the reason."""
        return _changes(self._handle)


class SendPort(Handle):
    """A port from which messages go to all receive ports that it is connected to."""

    __slots__ = ()

    def __init__(self, runtime: Runtime, name: str, type: str = "") -> None:
        super().__init__(made(lib.mdg_send_port_open, runtime._handle, name.encode(), type.encode()), runtime)

    def connect(self, to: str, timeout: Optional[float] = None) -> None:
        """Connects to the receive port of that address. Refused: the text says why, as the key in which the types differ; TimedOut; Lost."""
        if timeout is None:
            done(lib.mdg_port_connect(self._handle, to.encode(), -1))
        else:
            patiently(lambda wait: lib.mdg_port_connect(self._handle, to.encode(), wait), timeout)

    def disconnect(self, to: str) -> None:
        """Leaves a receive port, which still gets what was sent."""
        done(lib.mdg_port_disconnect(self._handle, to.encode()))

    def send(self, *items: Any) -> int:
        """Sends a message of these items: an int (64 bits), a float, a text, an object with a buffer of numbers (array, numpy, bytes), whose
        memory is lent and not copied. Waits until every receiver has what is long, and the rest has left. Returns to how many receive ports it went."""
        with self.message() as message:
            for item in items:
                message.put(item)
            count = message.send()
        patiently(lambda wait: lib.mdg_flush(self._handle, wait), None)
        return count

    def message(self) -> "Message":
        """An empty message, to be written item by item."""
        return Message(made(lib.mdg_message_new, self._handle), self)

    def changes(self) -> list[dict[str, str]]:
        """Receive ports that were lost since the last call: "port" is the address, "why" the reason."""
        return _changes(self._handle)


class Message(Borrowing):
    """A message that is written."""

    __slots__ = ("_port",)

    def __init__(self, handle: int, of: SendPort) -> None:
        super().__init__(handle, of)
        self._port = of

    def put(self, item: Any, copy: bool = False) -> None:
        """Adds an item: see `SendPort.send`. With `copy` a buffer may change at once; else it must stay as it is until the message ends."""
        if isinstance(item, bool) or isinstance(item, int):
            self.put_number(item, _INT64)
        elif isinstance(item, float):
            self.put_number(item, _FLOAT64)
        elif isinstance(item, str):
            done(lib.mdg_put_text(self._handle, item.encode()))
        else:
            self._put_array(item, copy)

    def put_number(self, value: Union[int, float], kind: int) -> None:
        """Adds a number of a kind of madrigal.h (MDG_INT8 is 1, MDG_FLOAT64 is 10)."""
        number = _CTYPES[kind](value)
        done(lib.mdg_put_number(self._handle, kind, byref(number)))

    def begin_record(self) -> None:
        """What follows belongs together, up to `end_record`."""
        done(lib.mdg_put_begin(self._handle))

    def end_record(self) -> None:
        """The end of a record."""
        done(lib.mdg_put_end(self._handle))

    def _put_array(self, item: Bytes, copy: bool) -> None:
        view = memoryview(item)
        kind, memory = _kind(view), Lent(item)
        code = lib.mdg_put_array(self._handle, kind, memory.address, memory.size // view.itemsize, _SAFER if copy else _CHEAPER)
        if copy or code < 0:
            memory.release()
        else:
            self._lent.append(memory)
        done(code)

    def send(self) -> int:
        """Sends it; it may be sent again. Returns to how many receive ports it went."""
        return done(lib.mdg_port_send(self._port._handle, self._handle))


class Incoming(Handle):
    """A message that is read, item by item. What is not read by the end of the `with` is thrown away."""

    __slots__ = ("sender",)

    def __init__(self, handle: int, of: ReceivePort) -> None:
        super().__init__(handle, of)
        self.sender = text(lib.mdg_incoming_from, handle)[1]

    def take(self, most: int = 1 << 30) -> Optional[Value]:
        """The next item: an int, a float, a text, or an array.array of numbers; None at the end. The beginning and the end of a record are
        passed over. An array that the sender says has more than `most` bytes is a ValueError, and stays: memory is taken for its word."""
        while True:
            item, kind, count = self._next()
            if item not in (_BEGIN, _END):
                break
            done(lib.mdg_get_record(self._handle, item))
        if item == _NUMBER:
            number = _CTYPES[kind]()
            done(lib.mdg_get_number(self._handle, kind, byref(number)))
            return number.value
        if item == _TEXT:
            room = ctypes.create_string_buffer(count + 1)
            done(lib.mdg_get_text(self._handle, room, count + 1))
            return room.raw[:count].decode()
        if item == _ARRAY:
            if count * ctypes.sizeof(_CTYPES[kind]) > most:
                raise ValueError(f"an array of {count * ctypes.sizeof(_CTYPES[kind])} bytes, and {most} are taken at most")
            values = array.array(_LETTERS[kind], bytes(count * ctypes.sizeof(_CTYPES[kind])))
            if count:
                self.take_into(values)
            else:
                done(lib.mdg_get_array(self._handle, kind, None, 0))
            return values
        return None

    def take_into(self, room: Bytes) -> None:
        """The next item, an array, into an object's own memory, without a copy. Mismatch if it has another length or kind."""
        view = memoryview(room)
        with Lent(room, writable=True) as memory:
            done(lib.mdg_get_array(self._handle, _kind(view), memory.address, memory.size // view.itemsize))

    def _next(self) -> tuple[int, int, int]:
        kind, count = c_int(), c_size_t()
        item = done(lib.mdg_item(self._handle, byref(kind), byref(count)))
        return item, kind.value, count.value

    def __exit__(self, kind: Optional[type[BaseException]], value: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        self.close()


def _changes(handle: int) -> list[dict[str, str]]:
    # Those that do not fit are told again, where there is more room.
    code, told = text(lib.mdg_port_changes, handle)
    changes: list[dict[str, str]] = json.loads(told) if code >= 0 else failed(code)
    return changes
