"""A pipeline of mailboxes: fields go from process to process in shared buffers, which nobody copies, and headers say what is in them."""

import multiprocessing
from multiprocessing.connection import Connection

import madrigal

STEPS = 3


def field(first: int) -> madrigal.Buffer:
    with madrigal.Draft(100_000) as draft:
        draft.memory[0] = first
        return draft.seal()


def doubles(address: Connection, to: str) -> None:
    with madrigal.Runtime() as runtime:
        box = madrigal.Mailbox(runtime, "doubles")
        address.send(box.address)
        for _ in range(STEPS):
            header = box.wait(kind="data")
            with box.get(header) as buffer:
                box.put(to, field(2 * buffer.memory[0]), tag=header.tag, policy="sender")
        box.flush()


def prints(address: Connection) -> None:
    with madrigal.Runtime() as runtime:
        box = madrigal.Mailbox(runtime, "prints")
        address.send(box.address)
        for step in range(1, STEPS + 1):
            header = box.wait(tag=step)
            with box.get(header) as buffer:
                print("step", header.tag, "begins with", buffer.memory[0], "of", header.size, "bytes")


def started(stage: object, *more: str) -> "tuple[multiprocessing.Process, str]":
    here, there = spawn.Pipe()
    process = spawn.Process(target=stage, args=(there, *more))
    process.start()
    return process, here.recv()


if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    last, end = started(prints)
    middle, address = started(doubles, end)
    with madrigal.Runtime() as runtime:
        box = madrigal.Mailbox(runtime, "source")
        for step in range(1, STEPS + 1):
            box.put(address, field(10 * step), tag=step, policy="sender")
        box.flush()
        middle.join()
        last.join()
