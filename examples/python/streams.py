"""A server and its clients in asyncio: what asyncio.start_server() and open_connection() do, over links."""

import asyncio

import madrigal


async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while line := await reader.readline():
        writer.write(line.upper())
        await writer.drain()
    writer.close()


async def main() -> None:
    async with await madrigal.listen(shout, "example-shout") as server:
        reader, writer = await madrigal.connect(server.address)
        writer.write(b"is anybody there?\n")
        print((await reader.readline()).decode(), end="")
        writer.close()
        await writer.wait_closed()


asyncio.run(main())
