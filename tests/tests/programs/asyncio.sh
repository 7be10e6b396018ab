# needs: python3
# An asyncio server and 200 clients in another process.
cat > server.py <<'X'
import asyncio, sys
async def serve(r, w):
    while data := await r.read(65536):
        w.write(data); await w.drain()
    w.close()
async def main():
    s = await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]), backlog=512)
    async with s: await s.serve_forever()
asyncio.run(main())
X
cat > client.py <<'X'
import asyncio, sys, hashlib
async def one(i):
    r, w = await asyncio.open_connection("127.0.0.1", int(sys.argv[1])); h = hashlib.sha256()
    for k in range(20):
        m = (b"%d-%d " % (i, k)) * (1 + 37 * k)
        w.write(m); await w.drain(); h.update(await r.readexactly(len(m)))
    w.close(); await w.wait_closed(); return h.hexdigest()
async def main():
    got = await asyncio.gather(*(one(i) for i in range(200)))
    print(len(got), hashlib.sha256("".join(got).encode()).hexdigest())
asyncio.run(main())
X
python3 server.py $P1 &
await $P1
python3 client.py $P1
