"""Two programs that hold many connections and do nothing: `server PORT COUNT` echoes, `client PORT COUNT` talks a little on each
connection and then waits for something that never comes."""

import resource
import select
import socket
import sys


def server(port: int, count: int) -> None:
    listener = socket.create_server(("127.0.0.1", port), backlog=1024)
    waiting = select.epoll()
    waiting.register(listener.fileno(), select.EPOLLIN)
    peers: dict[int, socket.socket] = {}
    while True:
        for fd, _ in waiting.poll():
            if fd == listener.fileno():
                peer = listener.accept()[0]
                peers[peer.fileno()] = peer
                waiting.register(peer.fileno(), select.EPOLLIN)
            elif data := peers[fd].recv(65536):
                peers[fd].sendall(data)
            else:
                waiting.unregister(fd)
                peers.pop(fd).close()


def client(port: int, count: int) -> None:
    waiting = select.epoll()
    peers = []
    for _ in range(count):
        peer = socket.create_connection(("127.0.0.1", port))
        for turn in range(8):
            peer.sendall(b"%08d" % turn)
            assert peer.recv(8, socket.MSG_WAITALL) == b"%08d" % turn
        waiting.register(peer.fileno(), select.EPOLLIN)
        peers.append(peer)
    print("READY", flush=True)
    waiting.poll()


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    {"server": server, "client": client}[sys.argv[1]](int(sys.argv[2]), int(sys.argv[3]))
