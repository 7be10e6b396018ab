"""A pipeline of three stages, each a process with a port: numbers, their squares, and the sum of these."""

import multiprocessing
from array import array
from multiprocessing.connection import Connection

import madrigal


def squares(address: Connection, to: str) -> None:
    with madrigal.Runtime() as runtime:
        port, out = madrigal.ReceivePort(runtime, "numbers"), madrigal.SendPort(runtime, "squares")
        out.connect(to)
        address.send(port.address)
        with port.receive() as message:
            out.send(array("d", (number * number for number in message.take())))


def total(address: Connection) -> None:
    with madrigal.Runtime() as runtime:
        port = madrigal.ReceivePort(runtime, "total")
        address.send(port.address)
        with port.receive() as message:
            print("the sum is", sum(message.take()), "by", message.sender)


def started(stage: object, *more: str) -> "tuple[multiprocessing.Process, str]":
    here, there = spawn.Pipe()
    process = spawn.Process(target=stage, args=(there, *more))
    process.start()
    return process, here.recv()


if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    last, end = started(total)
    middle, address = started(squares, end)
    with madrigal.Runtime() as runtime:
        out = madrigal.SendPort(runtime, "numbers")
        out.connect(address)
        out.send(array("d", range(100)))
        middle.join()
        last.join()
