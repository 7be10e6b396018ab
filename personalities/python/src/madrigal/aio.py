"""Links in an asyncio program: as streams, or as transports for protocols. Any event loop that has add_reader() will do, uvloop too.

    reader, writer = await madrigal.connect("shm://service")
    server = await madrigal.listen(on_client, "tcp://0.0.0.0:4000")

Each loop has one runtime, opened with its first link and closed with the loop. Streams are asyncio.StreamReader and StreamWriter: what is
known of those holds. `writer.get_extra_info("why")` says which path was taken, and why.
"""

from __future__ import annotations

import asyncio
import collections
import itertools
import json
import weakref
from ctypes import c_void_p
from typing import Any, Awaitable, Callable, Optional, Union, cast

from ._library import Handler, lib, text
from ._memory import Bytes, Lent, Whole
from .errors import Closed, Error, error, failed
from .runtime import Runtime

# Bytes of one read, and of what may wait to be written before the protocol is asked to pause.
READ, HIGH_WATER = 256 * 1024, 256 * 1024

ProtocolFactory = Callable[[], asyncio.BaseProtocol]
OnClient = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Union[Awaitable[None], None]]
Then = Callable[[int], None]


async def connect(to: str, *, limit: int = 65536) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connects to an address or a card, with streams; `limit` as for asyncio.open_connection(). For a time, asyncio.wait_for()."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=limit, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport, _ = await create_connection(lambda: protocol, to)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


async def listen(on_client: OnClient, at: str, *, limit: int = 65536) -> "Server":
    """Listens at an address, or as a name without `://` by every driver that works here (then the server's `address` is a card), and calls
    `on_client(reader, writer)` for each link; a coroutine becomes a task."""
    loop = asyncio.get_running_loop()

    def protocol() -> asyncio.BaseProtocol:
        reader = asyncio.StreamReader(limit=limit, loop=loop)
        return asyncio.StreamReaderProtocol(reader, on_client, loop=loop)
    return await create_server(protocol, at)


async def create_connection(factory: ProtocolFactory, to: str) -> tuple["Transport", asyncio.BaseProtocol]:
    """Connects to an address or a card, with a transport and the protocol that the factory makes."""
    engine = _Engine.of(asyncio.get_running_loop())
    connected: asyncio.Future[int] = engine.loop.create_future()

    def then(result: int) -> None:
        if connected.done():
            if result >= 0:
                lib.mdg_close(result)
        elif result >= 0:
            connected.set_result(result)
        else:
            connected.set_exception(error(result))

    engine.post(lib.mdg_post_connect, engine.runtime._handle, to.encode(), then=then)
    try:
        link = await connected
    except asyncio.CancelledError:
        # In the same round it may have been made.
        if connected.done() and not connected.cancelled() and connected.exception() is None:
            lib.mdg_close(connected.result())
        raise
    transport = _transport(engine, link, factory)
    transport.begin()
    return transport, transport.get_protocol()


async def create_server(factory: ProtocolFactory, at: str) -> "Server":
    """Listens at an address, or as a name; each link gets a transport and a protocol of the factory's."""
    engine = _Engine.of(asyncio.get_running_loop())
    acceptor = engine.runtime.listen(at) if "://" in at else engine.runtime.serve(at)
    return Server(engine, acceptor, factory)


class _Engine:
    """A runtime in an event loop: turned when its descriptor says that there is something to do, and behind what was posted."""

    _of_loop: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Engine]" = weakref.WeakKeyDictionary()

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> "_Engine":
        """The loop's; opened if this is the first."""
        engine = cls._of_loop.get(loop)
        if engine is None:
            engine = cls._of_loop[loop] = cls(loop)
        return engine

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self.runtime = Runtime()
        self._descriptor = lib.mdg_fd(self.runtime._handle)
        if self._descriptor < 0:
            failed(self._descriptor)
        self._numbers = itertools.count(1)
        self._posted: dict[int, Then] = {}
        self._is_turning = False
        # The library calls it from mdg_turn() and mdg_close(), that is, in the loop's thread.
        self._handler = Handler(self._completed)
        loop.add_reader(self._descriptor, self._turn)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop."""
        loop = self._loop()
        assert loop is not None, "only what runs in the loop asks"
        return loop

    def post(self, function: Callable[..., int], *arguments: object, then: Then) -> None:
        """Posts an operation; `then` is called with its result from the loop, unless this raises."""
        number = next(self._numbers)
        self._posted[number] = then
        code = function(*arguments, self._handler, c_void_p(number), None)
        if code < 0:
            del self._posted[number]
            failed(code)
        self.soon()

    def soon(self) -> None:
        """Turns the engine once more in this loop: what was posted may be done already."""
        if not self._is_turning:
            self._is_turning = True
            self.loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._is_turning = False
        lib.mdg_turn(self.runtime._handle, 0)

    def _completed(self, number: int, _handle: int, result: int) -> None:
        then = self._posted.pop(number)
        try:
            then(result)
        except Exception as wrong:  # It must not leave a function that C calls.
            loop = self._loop()
            # What is cut off with the loop has nobody to be told.
            if loop is not None and not loop.is_closed():
                loop.call_exception_handler({"message": "madrigal: a completion failed", "exception": wrong})


class Server(asyncio.AbstractServer):
    """Accepts links until it is closed. `address` is what others connect to."""

    def __init__(self, engine: _Engine, acceptor: Any, factory: ProtocolFactory) -> None:
        self._engine, self._acceptor, self._factory = engine, acceptor, factory
        self.address: str = acceptor.address
        self._ended: asyncio.Future[None] = engine.loop.create_future()
        self._accept()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """The event loop."""
        return self._engine.loop

    def is_serving(self) -> bool:
        """Whether it accepts links."""
        return not self._acceptor.closed

    def close(self) -> None:
        """Accepts no more; links that are there stay."""
        self._acceptor.close()
        if not self._ended.done():
            self._ended.set_result(None)
        self._engine.soon()

    async def wait_closed(self) -> None:
        """Waits until it was closed."""
        await asyncio.shield(self._ended)

    async def start_serving(self) -> None:
        """It does already."""

    async def serve_forever(self) -> None:
        """Waits until it is closed; closes it if that is cancelled."""
        try:
            await self.wait_closed()
        finally:
            self.close()

    async def __aenter__(self) -> "Server":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
        await self.wait_closed()

    def _accept(self) -> None:
        self._engine.post(lib.mdg_post_accept, self._acceptor._handle, then=self._came)

    def _came(self, link: int) -> None:
        if self._acceptor.closed:
            if link >= 0:
                lib.mdg_close(link)
            return
        if link >= 0:
            self._accept()
            self._engine.loop.call_soon(_transport(self._engine, link, self._factory).begin)
        else:
            # Such as no free descriptor: later it may do, as asyncio's own servers have it.
            self._engine.loop.call_exception_handler({"message": "madrigal: cannot accept", "exception": error(link)})
            self._engine.loop.call_later(1, lambda: None if self._acceptor.closed else self._accept())


def _transport(engine: _Engine, link: int, factory: ProtocolFactory) -> "Transport":
    try:
        return Transport(engine, link, factory())
    except BaseException:
        lib.mdg_close(link)
        raise


class Transport(asyncio.Transport):
    """A link with a protocol. It has no half: `write_eof` is not there, and the end of the peer's stream ends both."""

    def __init__(self, engine: _Engine, link: int, protocol: asyncio.BaseProtocol) -> None:
        super().__init__()
        self._engine, self._link, self._protocol = engine, link, protocol
        self._room = bytearray(READ)
        self._is_reading = self._is_paused = self._is_closing = self._is_lost = self._is_full = False
        # What came while the protocol had paused: bytes, or the end.
        self._held: Optional[bytes] = None
        self._writing: "collections.deque[Union[Lent, Whole]]" = collections.deque()
        self._unwritten = 0
        self._low, self._high = HIGH_WATER // 4, HIGH_WATER

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """`peername`: the peer's address. `why`: which path was taken, and why (a dictionary)."""
        if self._link and name == "peername":
            return text(lib.mdg_address, self._link)[1]
        if self._link and name == "why":
            return json.loads(text(lib.mdg_why, self._link)[1])
        return default

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Another protocol gets what comes from now on."""
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Who gets what comes."""
        return self._protocol

    # Reading.

    def is_reading(self) -> bool:
        """Whether the protocol is told of what comes."""
        return not self._is_paused and not self._is_closing

    def pause_reading(self) -> None:
        """The protocol is told of nothing, until it resumes."""
        self._is_paused = True

    def resume_reading(self) -> None:
        """The protocol is told again."""
        if not self._is_paused:
            return
        self._is_paused = False
        self._engine.loop.call_soon(self._go_on)

    def begin(self) -> None:
        """The protocol is told of it, and of what comes from then on. Once, by who made it."""
        self._protocol.connection_made(self)
        if not self._is_closing:
            self._read()

    def _go_on(self) -> None:
        if self._is_paused or self._is_closing:
            return
        held, self._held = self._held, None
        if held is not None:
            self._deliver(held)
        self._read()

    def _read(self) -> None:
        if self._is_reading or self._is_paused or self._is_closing:
            return
        self._is_reading = True
        memory = Lent(self._room, writable=True)

        def then(result: int) -> None:
            memory.release()
            self._is_reading = False
            self._came(result)
        try:
            self._engine.post(lib.mdg_post_read, self._link, memory.address, memory.size, then=then)
        except Error as wrong:
            memory.release()
            self._is_reading = False
            self._fail(wrong)

    def _came(self, result: int) -> None:
        if self._is_closing:
            return
        if result < 0:
            self._fail(error(result))
            return
        came = bytes(memoryview(self._room)[:result])
        if self._is_paused:
            self._held = came
            return
        self._deliver(came)
        self._read()

    def _deliver(self, came: bytes) -> None:
        if came:
            if isinstance(self._protocol, asyncio.BufferedProtocol):
                self._fill(self._protocol, memoryview(came))
            else:
                cast(asyncio.Protocol, self._protocol).data_received(came)
            return
        # Buffered ones have it, too.
        cast(asyncio.Protocol, self._protocol).eof_received()
        self.close()

    @staticmethod
    def _fill(protocol: asyncio.BufferedProtocol, came: memoryview) -> None:
        while came:
            room = memoryview(protocol.get_buffer(len(came))).cast("B")
            size = min(len(room), len(came))
            room[:size] = came[:size]
            protocol.buffer_updated(size)
            came = came[size:]

    # Writing.

    def write(self, data: Bytes) -> None:
        """Writes as soon as there is room; what does not go at once is copied."""
        if self._is_closing or self._is_lost:
            return
        if not isinstance(data, bytes):
            data = bytes(data)
        if not data:
            return
        done = 0
        if not self._writing:
            # A failure is told by the write that is posted.
            done = max(0, lib.mdg_write(self._link, data, len(data), 0))
            self._engine.soon()
        if done < len(data):
            self._post(data[done:])

    def _post(self, data: bytes) -> None:
        memory = Whole(data)
        self._writing.append(memory)
        self._unwritten += len(data)
        try:
            self._engine.post(lib.mdg_post_write, self._link, memory.address, memory.size, then=self._written)
        except Error as wrong:
            self._writing.pop()
            self._unwritten -= len(data)
            self._fail(wrong)
            return
        if self._unwritten > self._high and not self._is_full:
            self._is_full = True
            self._protocol.pause_writing()

    def _written(self, result: int) -> None:
        # In the order in which they were posted.
        self._unwritten -= self._writing.popleft().size
        if result < 0 and not self._is_lost:
            self._fail(error(result))
        if self._is_full and not self._is_lost and self._unwritten <= self._low:
            self._is_full = False
            self._protocol.resume_writing()

    def can_write_eof(self) -> bool:
        """A link ends as a whole."""
        return False

    def write_eof(self) -> None:
        """A link ends as a whole: close it."""
        raise NotImplementedError("a link of Madrigal's has no half close")

    def get_write_buffer_size(self) -> int:
        """Bytes that are not taken yet."""
        return self._unwritten

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Low and high water, in bytes."""
        return self._low, self._high

    def set_write_buffer_limits(self, high: Optional[int] = None, low: Optional[int] = None) -> None:
        """As asyncio.WriteTransport has it."""
        if high is None:
            high = HIGH_WATER if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high}) must be at least low ({low}), and low at least 0")
        self._low, self._high = low, high

    # The end.

    def is_closing(self) -> bool:
        """Whether it ends, or has ended."""
        return self._is_closing

    def close(self) -> None:
        """Ends it behind what is to be written."""
        if self._is_closing:
            return
        self._is_closing = True
        try:
            self._engine.post(lib.mdg_post_close, self._link, then=lambda _: self._lose(None))
        except Closed:
            self._engine.loop.call_soon(self._lose, None)

    def abort(self) -> None:
        """Ends it at once."""
        self._is_closing = True
        self._engine.loop.call_soon(self._lose, None)

    def _fail(self, wrong: Error) -> None:
        self._is_closing = True
        self._engine.loop.call_soon(self._lose, wrong)

    def _lose(self, wrong: Optional[Exception]) -> None:
        if self._is_lost:
            return
        self._is_lost = self._is_closing = True
        link, self._link = self._link, 0
        lib.mdg_close(link)
        self._engine.soon()
        self._protocol.connection_lost(wrong)

    def __del__(self) -> None:
        link = getattr(self, "_link", 0)
        if link and lib is not None:
            lib.mdg_close(link)
