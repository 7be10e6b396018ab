"""One program on two hosts: a link, messages of a circuit, and ports. `library.py serve AT` prints what others connect to, one word a line
of what it is; `library.py ask LINK PORT` is the other one. What comes back must be what was sent."""

import array
import sys

import madrigal

LONG = array.array("d", range(40_000))


def serve(at: str) -> None:
    with madrigal.Runtime() as runtime:
        acceptor, port = runtime.listen(at), madrigal.ReceivePort(runtime, "in")
        print(acceptor.address, port.address, flush=True)
        link, circuit = acceptor.accept(60), madrigal.Circuit(runtime)
        link.write(circuit.address)
        asks = bytearray(64)
        link.read_exactly(asks, 60)
        circuit.join([circuit.address, bytes(asks)])
        while data := link.read(timeout=60):
            link.write(data)
        with circuit.receive(timeout=60) as message:
            words = message.take(LONG.itemsize * len(LONG))
        circuit.send(1, words)
        with port.receive(timeout=60) as message:
            name, numbers = message.take(), message.take()
        circuit.send(1, f"{name} {numbers == LONG}".encode().ljust(32))


def ask(to: str, port: str) -> None:
    with madrigal.Runtime() as runtime:
        link, circuit = runtime.connect(to, timeout=30), madrigal.Circuit(runtime)
        serves = bytearray(64)
        link.read_exactly(serves, 60)
        link.write(circuit.address)
        circuit.join([bytes(serves), circuit.address])
        came = bytearray(LONG.itemsize * len(LONG))
        for _ in range(3):
            link.write(LONG)
            link.read_exactly(came, 60)
            assert came == LONG.tobytes()
        print("link", link.address, flush=True)
        link.close()
        circuit.send(0, LONG)
        with circuit.receive(0, timeout=60) as message:
            assert message.take(len(came)) == LONG.tobytes()
        print("circuit", flush=True)
        sends = madrigal.SendPort(runtime, "out")
        sends.connect(port, timeout=30)
        sends.send("numbers", LONG)
        with circuit.receive(0, timeout=60) as message:
            print("port", message.take(32).decode().strip())


serve(sys.argv[2]) if sys.argv[1] == "serve" else ask(*sys.argv[2:])
