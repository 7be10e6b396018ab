"""What runs on the hosts of a lab: senders and receivers, as text for `python3 -c`."""

from __future__ import annotations

RECEIVER = """
import socket, sys, time
warm_up, seconds = float(sys.argv[1]), float(sys.argv[2])
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("", 5201))
listener.listen()
print("ready", flush=True)
connection, _ = listener.accept()
buffer, count, begun = bytearray(1 << 16), 0, time.monotonic() + warm_up
while time.monotonic() < begun + seconds and (got := connection.recv_into(buffer)):
    count += got if time.monotonic() >= begun else 0
print(count * 8 / seconds / 1e6)
"""

SENDER = """
import os, pathlib, socket, sys
target, data, root = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
if data == "text":
    folders = "bench", "crates", "docs", "personalities", "tests", "tools"
    files = sorted(path for folder in folders for kind in ("rs", "md", "py") for path in root.glob(folder + "/**/*." + kind))
    piece = b"".join(path.read_bytes() for path in files)
else:
    piece = os.urandom(16 << 20)
connection = socket.create_connection((target, 5201))
try:
    while True:
        connection.sendall(piece)
except OSError:
    pass
"""


DATAGRAM = 1100
"""Bytes of a datagram: less than any path carries."""
LATE = 1.5
"""How many round trips 99 of 100 datagrams may take."""

TAKER = """
import socket, sys, time
warm_up, seconds = float(sys.argv[1]), float(sys.argv[2])
taker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
taker.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
taker.bind(("", 5004))
print("ready", flush=True)
count, delays, begun = 0, [], None
while begun is None or time.monotonic() < begun + seconds:
    got = taker.recv(65536)
    begun = begun or time.monotonic() + warm_up
    if time.monotonic() >= begun:
        count += len(got)
        delays.append(time.monotonic_ns() - int.from_bytes(got[:8], "little"))
delays.sort()
print(count * 8 / seconds / 1e6, delays[len(delays) * 99 // 100] / 1e6)
"""

GIVER = """
import socket, sys, time
port, rate, length, seconds = int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])
giver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
giver.connect((sys.argv[1], port))
begun = due = time.monotonic()
while due < begun + seconds:
    due += length * 8 / rate
    time.sleep(max(0, due - time.monotonic()))
    try:
        giver.send(time.monotonic_ns().to_bytes(8, "little") + bytes(length - 8))
    except OSError:
        pass
"""


QUESTION_PORT = 7001
"""Of urgent questions."""
RULES = f"""
[rule.questions]
ports = "{QUESTION_PORT}"
class = "urgent"
[rule.transfers]
ports = "5201-5202"
class = "bulk"
"""

ANSWERER = """
import socket, sys
listener = socket.create_server(("", int(sys.argv[1])))
print("ready", flush=True)
connection, _ = listener.accept()
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while got := connection.recv(64):
    connection.sendall(got)
"""

ASKER = """
import socket, sys, time
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
times, end = [], time.monotonic() + float(sys.argv[3])
while time.monotonic() < end:
    began, left = time.monotonic_ns(), 64
    connection.sendall(bytes(64))
    while left:
        left -= len(connection.recv(left))
    times.append(time.monotonic_ns() - began)
    time.sleep(0.02)
times.sort()
print(times[len(times) * 99 // 100] / 1e6)
"""
