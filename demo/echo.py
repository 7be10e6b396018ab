"""An echo server and a client, as one writes them: nothing here knows of Madrigal."""

import selectors
import socket
import sys
import time

SIZE = 64


def serve(port):
    listener = socket.create_server(("127.0.0.1", port), backlog=128)
    ready = selectors.DefaultSelector()
    ready.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in ready.select():
            if key.fileobj is listener:
                connection, _ = listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                ready.register(connection, selectors.EVENT_READ)
            elif data := key.fileobj.recv(65536):
                key.fileobj.sendall(data)
            else:
                ready.unregister(key.fileobj)
                key.fileobj.close()


def ask(port, clients, requests):
    """Each client has one question out; prints how many were answered a second."""
    connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(clients)]
    for connection in connections:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    rounds = max(requests // clients, 1)
    begun = time.perf_counter()
    for _ in range(rounds):
        for connection in connections:
            connection.sendall(b"?" * SIZE)
        for connection in connections:
            got = 0
            while got < SIZE:
                answer = connection.recv(SIZE - got)
                if not answer:
                    sys.exit("the server went away")
                got += len(answer)
    print(rounds * clients / (time.perf_counter() - begun))


if __name__ == "__main__":
    role, *numbers = sys.argv[1:]
    (serve if role == "server" else ask)(*map(int, numbers))
