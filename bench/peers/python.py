"""Two processes of Python over one connection: `asyncio`: round trips of 8 bytes by asyncio's TCP streams; `link`: the same by a link over
shared memory; `bulk`: 64 MiB at a time by such a link, from and into memory of the program's own.

usage: python.py asyncio|link|bulk ROUNDS      prints microseconds a round trip, or Gbyte/s
"""

import asyncio
import os
import subprocess
import sys
import time

SIZE, BULK = 8, 64 << 20


def asyncio_peer(rounds: int) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(rounds):
            writer.write(await reader.readexactly(SIZE))
        writer.close()
        ended.set()

    async def serve() -> None:
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        print(server.sockets[0].getsockname()[1], flush=True)
        await ended.wait()
    ended = asyncio.Event()
    asyncio.run(serve())


def asyncio_main(port: str, rounds: int) -> float:
    async def ask() -> float:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
        began = time.perf_counter()
        for _ in range(rounds):
            writer.write(b"8 bytes.")
            await reader.readexactly(SIZE)
        return (time.perf_counter() - began) / rounds * 1e6
    return asyncio.run(ask())


def accepted():
    import madrigal
    runtime = madrigal.Runtime()
    acceptor = runtime.listen(f"shm://bench-python-{os.getpid()}")
    print(acceptor.address, flush=True)
    return acceptor.accept(timeout=20)


def connected(address: str):
    import madrigal
    return madrigal.Runtime().connect(address, timeout=20)


def link_peer(rounds: int) -> None:
    link, room = accepted(), bytearray(SIZE)
    for _ in range(rounds):
        link.read_into(room)
        link.write(room)
    link.read(1)


def link_main(address: str, rounds: int) -> float:
    link, room = connected(address), bytearray(SIZE)
    began = time.perf_counter()
    for _ in range(rounds):
        link.write(b"8 bytes.")
        link.read_into(room)
    return (time.perf_counter() - began) / rounds * 1e6


def bulk_peer(rounds: int) -> None:
    # Every page of it there, as in C.
    link, data = accepted(), bytearray(b"x") * BULK
    for _ in range(rounds):
        link.read(1)
        link.write(data)
    link.read(1)


def bulk_main(address: str, rounds: int) -> float:
    link, room = connected(address), bytearray(b"x") * BULK
    began = time.perf_counter()
    for _ in range(rounds):
        link.write(b"!")
        link.read_exactly(room)
    return BULK * rounds / (time.perf_counter() - began) / 1e9


def main() -> None:
    what, rounds = sys.argv[1], int(sys.argv[2])
    if sys.argv[3:] == ["peer"]:
        {"asyncio": asyncio_peer, "link": link_peer, "bulk": bulk_peer}[what](rounds)
        return
    peer = subprocess.Popen([sys.executable, *sys.argv, "peer"], stdout=subprocess.PIPE, text=True)
    try:
        address = peer.stdout.readline().strip()
        print({"asyncio": asyncio_main, "link": link_main, "bulk": bulk_main}[what](address, rounds))
    finally:
        peer.kill()
        peer.wait()


main()
