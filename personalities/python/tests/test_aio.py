"""Links in asyncio programs: streams, transports, servers; with asyncio's own loop and with uvloop where it is installed
(FEATURES A2, B2; docs/python.md)."""

from __future__ import annotations

import asyncio
import gc
import os
import unittest
import warnings
from typing import Any, Awaitable, Callable

from tree import WATCHDOG, start

import madrigal

try:
    import uvloop
except ImportError:
    uvloop = None

ADDRESSES = ("tcp://127.0.0.1:0", f"shm://python-aio-{os.getpid()}", f"python-aio-{os.getpid()}")


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Writes back what it reads."""
    try:
        while data := await reader.read(100_000):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


async def watched(program: Callable[[], Awaitable[Any]]) -> Any:
    """Runs it within a time, and lets the tasks of its servers see that their links have ended."""
    result = await asyncio.wait_for(program(), WATCHDOG)
    for _ in range(100):
        if len(asyncio.all_tasks()) == 1:
            break
        await asyncio.sleep(0.01)
    return result


class Streams(unittest.TestCase):
    """What asyncio.open_connection and start_server do, over links."""

    def run_it(self, program: Callable[[], Awaitable[Any]]) -> Any:
        """Runs it in a loop of its own, within a time."""
        return asyncio.run(watched(program))

    def test_bytes_go_both_ways_by_every_driver(self) -> None:
        async def program(at: str) -> None:
            async with await madrigal.listen(echo, at) as server:
                reader, writer = await madrigal.connect(server.address)
                data = bytes(range(256)) * 20_000
                writer.write(data)
                self.assertEqual(await reader.readexactly(len(data)), data)
                self.assertTrue(writer.get_extra_info("why")["driver"])
                self.assertTrue(writer.get_extra_info("peername"))
                writer.close()
                await writer.wait_closed()
        for at in ADDRESSES:
            with self.subTest(at):
                self.run_it(lambda: program(at))

    def test_many_links_at_once(self) -> None:
        async def one(address: str, number: int) -> None:
            reader, writer = await madrigal.connect(address)
            for turn in range(20):
                writer.write(b"%d %d\n" % (number, turn))
                self.assertEqual(await reader.readline(), b"%d %d\n" % (number, turn))
            writer.close()
            await writer.wait_closed()

        async def program() -> None:
            async with await madrigal.listen(echo, ADDRESSES[1]) as server:
                await asyncio.gather(*(one(server.address, number) for number in range(100)))
        self.run_it(program)

    def test_the_end_of_a_stream_is_told_behind_its_last_byte(self) -> None:
        async def program(at: str) -> None:
            got: "asyncio.Future[bytes]" = asyncio.get_running_loop().create_future()

            async def on_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                got.set_result(await reader.read())
                writer.close()
            async with await madrigal.listen(on_client, at) as server:
                _, writer = await madrigal.connect(server.address)
                writer.write(b"x" * 3_000_000)
                writer.close()
                self.assertEqual(len(await got), 3_000_000)
                await writer.wait_closed()
        for at in ADDRESSES:
            with self.subTest(at):
                self.run_it(lambda: program(at))

    def test_a_writer_waits_for_a_slow_reader(self) -> None:
        async def program() -> None:
            may_read = asyncio.Event()

            async def on_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await may_read.wait()
                await echo(reader, writer)
            async with await madrigal.listen(on_client, ADDRESSES[0]) as server:
                reader, writer = await madrigal.connect(server.address)
                data = bytes(30_000_000)
                writer.write(data)
                drained = asyncio.ensure_future(writer.drain())
                await asyncio.sleep(0.1)
                self.assertFalse(drained.done())
                self.assertGreater(writer.transport.get_write_buffer_size(), 0)
                may_read.set()
                self.assertEqual(await reader.readexactly(len(data)), data)
                await drained
                self.assertEqual(writer.transport.get_write_buffer_size(), 0)
                writer.close()
        self.run_it(program)

    def test_nobody_listens(self) -> None:
        with self.assertRaises(ConnectionRefusedError):
            self.run_it(lambda: madrigal.connect("tcp://127.0.0.1:1"))
        with self.assertRaises(ValueError):
            self.run_it(lambda: madrigal.connect("bogus://x"))

    def test_a_server_that_was_closed_takes_no_more(self) -> None:
        async def program() -> None:
            server = await madrigal.listen(echo, ADDRESSES[0])
            reader, writer = await madrigal.connect(server.address)
            writer.write(b"here")
            self.assertEqual(await reader.readexactly(4), b"here")
            server.close()
            self.assertFalse(server.is_serving())
            await server.wait_closed()
            writer.write(b"still here")
            self.assertEqual(await reader.readexactly(10), b"still here")
            with self.assertRaises(ConnectionRefusedError):
                await madrigal.connect(server.address)
            writer.close()
        self.run_it(program)

    def test_serving_forever_ends_when_it_is_cancelled(self) -> None:
        async def program() -> None:
            server = await madrigal.listen(echo, ADDRESSES[0])
            task = asyncio.ensure_future(server.serve_forever())
            await asyncio.sleep(0.01)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            self.assertFalse(server.is_serving())
        self.run_it(program)

    def test_a_connect_that_is_cancelled(self) -> None:
        async def program() -> None:
            async with await madrigal.listen(echo, ADDRESSES[0]) as server:
                task = asyncio.ensure_future(madrigal.connect(server.address))
                await asyncio.sleep(0)
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
                reader, writer = await madrigal.connect(server.address)
                writer.write(b"next")
                self.assertEqual(await reader.readexactly(4), b"next")
                writer.close()
        self.run_it(program)

    def test_a_peer_that_is_killed(self) -> None:
        async def program() -> None:
            came: "asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]]" = asyncio.Queue()
            async with await madrigal.listen(lambda *pair: came.put_nowait(pair), ADDRESSES[1]) as server:
                child = start("import asyncio, madrigal, sys\n"
                              "async def main():\n"
                              "    reader, writer = await madrigal.connect(sys.argv[1])\n"
                              "    writer.write(b'here')\n"
                              "    await asyncio.sleep(600)\n"
                              "asyncio.run(main())\n", server.address)
                reader, writer = await came.get()
                self.assertEqual(await reader.readexactly(4), b"here")
                child.kill()
                child.communicate()
                with self.assertRaises(ConnectionResetError):
                    await reader.read()
                writer.close()
        self.run_it(program)

    def test_an_aborted_link(self) -> None:
        async def program() -> None:
            async with await madrigal.listen(echo, ADDRESSES[0]) as server:
                reader, writer = await madrigal.connect(server.address)
                writer.write(bytes(10_000_000))
                writer.transport.abort()
                self.assertEqual(await reader.read(), b"")
                self.assertTrue(writer.is_closing())
        self.run_it(program)

    def test_nothing_is_left_of_a_loop(self) -> None:
        async def program() -> None:
            async with await madrigal.listen(echo, ADDRESSES[0]) as server:
                _, writer = await madrigal.connect(server.address)
                writer.write(b"x")
                await asyncio.sleep(0.01)
                # Not waited for.
                writer.close()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            self.run_it(program)
        gc.collect()
        self.assertLessEqual(len(os.listdir("/proc/self/fd")), before + 2)


@unittest.skipIf(uvloop is None, "no uvloop")
class StreamsOfUvloop(Streams):
    """The same in uvloop."""

    def run_it(self, program: Callable[[], Awaitable[Any]]) -> Any:
        loop = uvloop.new_event_loop()
        try:
            return loop.run_until_complete(watched(program))
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()


class Sink(asyncio.BufferedProtocol):
    """Takes what comes into 1,000 bytes of its own at a time."""

    def __init__(self) -> None:
        self.room, self.got, self.ended = bytearray(1000), bytearray(), asyncio.get_running_loop().create_future()

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.room

    def buffer_updated(self, nbytes: int) -> None:
        self.got += self.room[:nbytes]

    def connection_lost(self, exc: Any) -> None:
        self.ended.set_result(exc)


class Protocols(unittest.TestCase):
    """Transports, for protocols of the program's own."""

    def test_a_protocol_with_its_own_buffer(self) -> None:
        async def program() -> None:
            sinks: list[Sink] = []

            def sink() -> Sink:
                sinks.append(Sink())
                return sinks[0]
            async with await madrigal.create_server(sink, ADDRESSES[1]) as server:
                transport, _ = await madrigal.create_connection(asyncio.Protocol, server.address)
                data = bytes(range(256)) * 4000
                transport.write(data)
                transport.close()
                while not sinks:
                    await asyncio.sleep(0.001)
                self.assertIsNone(await asyncio.wait_for(sinks[0].ended, WATCHDOG))
                self.assertEqual(sinks[0].got, data)
        asyncio.run(program())

    def test_a_protocol_that_pauses(self) -> None:
        class Slow(asyncio.Protocol):
            def connection_made(self, transport: Any) -> None:
                self.transport, self.got, self.seen = transport, 0, asyncio.Event()
                transport.pause_reading()

            def data_received(self, data: bytes) -> None:
                assert self.transport.is_reading()
                self.got += len(data)
                self.transport.pause_reading()
                self.seen.set()

        async def program() -> None:
            slow = Slow()
            async with await madrigal.create_server(lambda: slow, ADDRESSES[0]) as server:
                transport, _ = await madrigal.create_connection(asyncio.Protocol, server.address)
                transport.write(bytes(1_000_000))
                await asyncio.sleep(0.1)
                self.assertEqual(slow.got, 0)
                while slow.got < 1_000_000:
                    slow.seen.clear()
                    slow.transport.resume_reading()
                    await asyncio.wait_for(slow.seen.wait(), WATCHDOG)
                transport.close()
        asyncio.run(program())

    def test_a_protocol_that_cannot_be_made(self) -> None:
        class Once(Exception):
            pass

        async def program() -> None:
            made: list[Sink] = []

            def sink() -> Sink:
                made.append(Sink())
                if len(made) == 1:
                    raise Once
                return made[-1]
            told: list[Any] = []
            asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
            async with await madrigal.create_server(sink, ADDRESSES[0]) as server:
                first, _ = await madrigal.create_connection(Sink, server.address)
                second, _ = await madrigal.create_connection(Sink, server.address)
                second.write(b"here")
                second.close()
                self.assertIsInstance(await asyncio.wait_for(first.get_protocol().ended, WATCHDOG), (type(None), ConnectionError))
                self.assertIsNone(await asyncio.wait_for(made[1].ended, WATCHDOG))
                self.assertEqual(made[1].got, b"here")
                self.assertEqual([type(one) for one in told], [Once])
            with self.assertRaises(Once):
                async with await madrigal.create_server(asyncio.Protocol, ADDRESSES[0]) as server:
                    made.clear()
                    await madrigal.create_connection(sink, server.address)
        asyncio.run(program())

    def test_a_protocol_knows_its_transport_at_once(self) -> None:
        async def program() -> None:
            async with await madrigal.create_server(asyncio.Protocol, ADDRESSES[0]) as server:
                made: list[Any] = []

                class Known(asyncio.Protocol):
                    def connection_made(self, transport: Any) -> None:
                        made.append(transport)
                transport, _ = await madrigal.create_connection(Known, server.address)
                self.assertEqual(made, [transport])
                transport.abort()
        asyncio.run(program())

    def test_limits_of_what_waits_to_be_written(self) -> None:
        async def program() -> None:
            async with await madrigal.create_server(asyncio.Protocol, ADDRESSES[0]) as server:
                transport, _ = await madrigal.create_connection(asyncio.Protocol, server.address)
                transport.set_write_buffer_limits(high=4000)
                self.assertEqual(transport.get_write_buffer_limits(), (1000, 4000))
                with self.assertRaises(ValueError):
                    transport.set_write_buffer_limits(high=1, low=2)
                self.assertFalse(transport.can_write_eof())
                with self.assertRaises(NotImplementedError):
                    transport.write_eof()
                transport.close()
        asyncio.run(program())


if __name__ == "__main__":
    warnings.simplefilter("error", ResourceWarning)
    unittest.main()
