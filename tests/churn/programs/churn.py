"""Churn in Python: threads. See ../README.md for what goes over the wire.

    churn.py server PORT BESIDE
    churn.py client PORT THREADS REQUESTS SIZE END SECONDS BESIDE SEED
"""

import os
import random
import socket
import struct
import subprocess
import sys
import threading
import time

PERIOD, CHUNK, PATIENCE = 65521, 65536, 20
ENDS = ["close", "linger0", "half", "kill"]
MASK = 0xFFFFFFFF
over = threading.Event()


def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def make_table():
    x, table = 12345, bytearray()
    for _ in range(PERIOD):
        x = (x * 1103515245 + 12345) & 0x7FFFFFFF
        table.append(x >> 16 & 255)
    return bytes(table) * 2 + bytes(table[:CHUNK])


TABLE = make_table()


def mix(x):
    x = x * 2654435761 & MASK
    x ^= x >> 15
    x = x * 2246822519 & MASK
    return x ^ x >> 13


def size_of(number, k, most):
    h = mix(number + k * 40503 & MASK)
    limit = most if h % 8 == 0 else most // 50
    return 1 + h // 8 % (limit or 1)


def content(number, direction, position, length):
    start = (mix((number * 2 + direction & MASK) ^ 0x9E3779B9) % PERIOD + position) % PERIOD
    return TABLE[start:start + length]


class Broken(Exception):
    """The connection ended otherwise than it should; it has been told."""


def fail(where, number, error, may_break):
    if isinstance(error, TimeoutError):
        say("timeout", where, "of connection", number)
    elif not may_break:
        say("error", where, "of connection", number, repr(error))
    raise Broken


def put(peer, number, direction, position, length, may_break):
    while length:
        part = min(length, CHUNK)
        try:
            peer.sendall(content(number, direction, position, part))
        except OSError as error:
            fail("send", number, error, may_break)
        position += part
        length -= part


def take(peer, number, direction, position, length, may_break):
    """Receives and checks; False when the end came before a byte of it."""
    got = 0
    view = memoryview(bytearray(CHUNK))
    while got < length:
        try:
            if number % 2:
                done = peer.recv_into(view[:min(length - got, CHUNK)])
                data = bytes(view[:done])
            else:
                data = peer.recv(min(length - got, CHUNK))
        except OSError as error:
            fail("receive", number, error, may_break)
        if not data:
            if got and not may_break:
                say("error the end came", got, "bytes into", length, "of connection", number)
            if got:
                raise Broken
            return False
        right = content(number, direction, position + got, len(data))
        if data != right:
            wrong = [i for i in range(len(data)) if data[i] != right[i]]
            say("wrong", len(wrong), "bytes from position", position + got + wrong[0], "of connection", number)
        got += len(data)
    return True


def serve(peer):
    with peer:
        prepare(peer)
        hello = b""
        try:
            while len(hello) < 16:
                more = peer.recv(16 - len(hello))
                if not more:
                    return
                hello += more
        except OSError:
            return
        magic, number, most, end = struct.unpack(">4sIII", hello)
        if magic != b"MCHN":
            say("wrong 16 bytes of a greeting")
            return
        may_break = ENDS[end] in ("linger0", "kill")
        position, k = 0, 0
        try:
            while True:
                length = size_of(number, k, most)
                if not take(peer, number, 0, position, length, may_break):
                    break
                put(peer, number, 1, position, length, may_break)
                position += length
                k += 1
            if ENDS[end] == "half":
                put(peer, number, 1, position, size_of(number, 65535, most), False)
        except Broken:
            pass


def prepare(peer):
    peer.settimeout(PATIENCE)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def server(port, beside):
    listener = socket.create_server(("127.0.0.1", port), backlog=1000)
    start_beside(beside)
    say("ready")
    while True:
        peer, _ = listener.accept()
        threading.Thread(target=serve, args=(peer,), daemon=True).start()


def start_beside(beside):
    def run():
        while not over.is_set():
            if beside == "fork":
                child = os.fork()
                if not child:
                    os._exit(0)
                os.waitpid(child, 0)
            else:
                subprocess.run(["/bin/true"], check=True)
            time.sleep(random.random() / 50)

    if beside != "none":
        threading.Thread(target=run, daemon=True).start()


class Counts:
    connections = 0
    bytes = 0
    lock = threading.Lock()


def connection(port, number, requests, most, end):
    peer = socket.socket()
    try:
        peer.settimeout(PATIENCE)
        peer.connect(("127.0.0.1", port))
    except OSError as error:
        peer.close()
        if error.errno not in (99, 110):
            say("error connect of connection", number, repr(error))
        time.sleep(0.01)
        return
    with peer:
        prepare(peer)
        with Counts.lock:
            Counts.connections += 1
        try:
            peer.sendall(struct.pack(">4sIII", b"MCHN", number, most, ENDS.index(end)))
            position = 0
            for k in range(requests):
                if over.is_set():
                    break
                length = size_of(number, k, most)
                put(peer, number, 0, position, length, False)
                if not take(peer, number, 1, position, length, False):
                    say("error the end came in place of an answer of connection", number)
                    return
                position += length
                with Counts.lock:
                    Counts.bytes += 2 * length
            if end == "half":
                peer.shutdown(socket.SHUT_WR)
                if not take(peer, number, 1, position, size_of(number, 65535, most), False):
                    say("error nothing came after the half close of connection", number)
                elif peer.recv(1):
                    say("error no end after the half close of connection", number)
            if end == "linger0":
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        except Broken:
            pass
        except OSError as error:
            say("timeout" if isinstance(error, TimeoutError) else "error", "of connection", number, repr(error))


def client(port, threads, requests, most, end, seconds, beside, seed):
    def churn(index):
        number = 0
        while not over.is_set():
            connection(port, seed + index * 1000003 + number & MASK, requests, most, end)
            number += 1

    start_beside(beside)
    all_of_them = [threading.Thread(target=churn, args=(index,)) for index in range(threads)]
    for thread in all_of_them:
        thread.start()
    for _ in range(seconds * 10):
        time.sleep(0.1)
        say("progress", Counts.connections, Counts.bytes)
    over.set()
    for thread in all_of_them:
        thread.join()
    say("done", Counts.connections, Counts.bytes)


def main():
    threading.stack_size(256 * 1024)
    words = sys.argv[1:]
    if words[0] == "server":
        server(int(words[1]), words[2])
    else:
        client(int(words[1]), int(words[2]), int(words[3]), int(words[4]), words[5], int(words[6]), words[7], int(words[8]))


main()
