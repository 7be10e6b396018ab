"""Messages of a group of processes (FEATURES B2, B4, P3)."""

from __future__ import annotations

import array
import os
import subprocess
import sys
import tempfile
import threading
import unittest

from tree import RELEASE, WATCHDOG, environment, output, start

import madrigal

# Rank 1 of two: tells its address, is told both, then runs what the test adds.
PEER = ("import sys, array, os, time, madrigal\n"
        "runtime = madrigal.Runtime()\n"
        "circuit = madrigal.Circuit(runtime, tags=True)\n"
        "print(circuit.address.hex(), flush=True)\n"
        "circuit.join([bytes.fromhex(word) for word in input().split()])\n")


class Peer:
    """A group of this process and another, which runs a program as rank 1."""

    def __init__(self, program: str) -> None:
        self.runtime = madrigal.Runtime()
        self.circuit = madrigal.Circuit(self.runtime, tags=True)
        self.child = start(PEER + program, stdin=subprocess.PIPE)
        addresses = [self.circuit.address, bytes.fromhex(self.child.stdout.readline())]
        self.child.stdin.write(" ".join(address.hex() for address in addresses) + "\n")
        self.child.stdin.flush()
        self.rank = self.circuit.join(addresses)

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_: object) -> None:
        self.child.kill()
        self.child.communicate()
        self.runtime.close()


class Circuits(unittest.TestCase):
    """Two nodes."""

    def test_pieces_of_every_length_come_as_they_were_sent(self) -> None:
        with Peer("with circuit.receive() as message:\n"
                  "    assert (message.sender, message.tag) == (0, 5)\n"
                  "    sizes = array.array('Q', message.take(24))\n"
                  "    pieces = [bytearray(size) for size in sizes]\n"
                  "    for piece in pieces: message.take_into(piece, later=True)\n"
                  "circuit.send(0, *pieces, tag=9)\n") as peer:
            self.assertEqual((peer.rank, peer.circuit.rank, peer.circuit.size), (0, 0, 2))
            pieces = [b"short", bytes(range(256)) * 1000, bytearray(4096)]
            peer.circuit.send(1, array.array("Q", map(len, pieces)), *pieces, tag=5)
            with peer.circuit.receive(1, tag=9, ignore=0, timeout=WATCHDOG) as message:
                self.assertEqual([message.take(len(piece)) for piece in pieces], pieces)
            self.assertEqual(output(peer.child), "")

    def test_a_copied_piece_may_change_at_once(self) -> None:
        with Peer("with circuit.receive() as message:\n"
                  "    print(message.take(5), message.take(5))\n") as peer:
            room = bytearray(b"first")
            with peer.circuit.pack(1) as message:
                message.put(room, copy=True)
                room[:] = b"other"
                message.put(room)
            self.assertEqual(output(peer.child), "b'first' b'other'\n")

    def test_tags_are_asked_for(self) -> None:
        with Peer("for tag in 3, 2, 1: circuit.send(0, b'%d' % tag, tag=tag)\n"
                  "input()\n") as peer:
            for tag in 1, 2, 3:
                with peer.circuit.receive(tag=tag, ignore=0, timeout=WATCHDOG) as message:
                    self.assertEqual((message.tag, message.take(1)), (tag, b"%d" % tag))
            with self.assertRaises(madrigal.TimedOut):
                peer.circuit.receive(timeout=0.15)

    def test_an_exception_sends_nothing(self) -> None:
        with Peer("with circuit.receive() as message: print(message.take(4))\n") as peer:
            with self.assertRaises(ZeroDivisionError), peer.circuit.pack(1) as message:
                message.put(b"half")
                _ = 1 // 0
            peer.circuit.send(1, b"full")
            self.assertEqual(output(peer.child), "b'full'\n")

    def test_other_pieces_than_were_sent(self) -> None:
        with Peer("circuit.send(0, b'four')\ninput()\n") as peer:
            with self.assertRaises(madrigal.Mismatch):
                with peer.circuit.receive(timeout=WATCHDOG) as message:
                    message.take(40)

    def test_a_node_that_dies_is_told(self) -> None:
        with Peer("circuit.send(0, b'here')\ntime.sleep(600)\n") as peer:
            with peer.circuit.receive(1, timeout=WATCHDOG) as message:
                message.take(4)
            peer.child.kill()
            with self.assertRaises(madrigal.Lost):
                peer.circuit.receive(1, timeout=WATCHDOG)

    def _fill(self, peer: Peer) -> None:
        """Sends until something has to wait for a peer that does not receive."""
        for _ in range(100_000):
            message = peer.circuit.pack(1)
            message.put(bytes(4000))
            message.send()
            try:
                peer.circuit.flush(timeout=0)
            except madrigal.TimedOut:
                return
        self.fail("everything has left")

    def test_a_flush_ends_with_the_node_it_waits_for(self) -> None:
        with Peer("time.sleep(600)\n") as peer:
            self._fill(peer)
            peer.child.kill()
            peer.circuit.flush(timeout=WATCHDOG)

    def test_a_flush_ends_with_its_circuit(self) -> None:
        with Peer("time.sleep(600)\n") as peer:
            self._fill(peer)
            closer = threading.Timer(0.2, peer.runtime.close)
            closer.start()
            with self.assertRaises(madrigal.Closed):
                peer.circuit.flush(timeout=WATCHDOG)
            peer.child.kill()
            closer.join(WATCHDOG)

    def test_no_such_rank_and_no_such_group(self) -> None:
        with madrigal.Runtime() as runtime:
            circuit = madrigal.Circuit(runtime)
            with self.assertRaises(madrigal.Busy):
                circuit.send(0, b"nobody")
            with self.assertRaisesRegex(ValueError, "64 bytes"):
                circuit.join([b"short"])
            circuit.join([circuit.address])
            with self.assertRaises(madrigal.ArgumentError):
                circuit.send(1, b"nobody")


WORLD = ("import madrigal\n"
         "world = madrigal.world()\n"
         "for node in range(world.size):\n"
         "    if node != world.rank: world.send(node, b'%d' % world.rank)\n"
         "seen = []\n"
         "for _ in range(world.size - 1):\n"
         "    with world.receive() as message: seen.append(int(message.take(1)))\n"
         "print(f'{world.rank} {world.size} {sorted(seen)}\\n', end='', flush=True)\n")
THREE = "0 3 [1, 2]\n1 3 [0, 2]\n2 3 [0, 1]\n"


class Launched(unittest.TestCase):
    """The group of all that one launcher started."""

    def _run(self, *launcher: str) -> str:
        # Open MPI's jobs of one host and user share a folder there.
        with tempfile.TemporaryDirectory() as folder:
            variables = environment(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", TMPDIR=folder)
            done = subprocess.run([*launcher, sys.executable, "-c", WORLD], env=variables, capture_output=True, text=True, timeout=WATCHDOG)
        self.assertEqual(done.returncode, 0, done.stderr)
        return "".join(sorted(done.stdout.splitlines(keepends=True)))

    def test_alone(self) -> None:
        self.assertEqual(self._run(), "0 1 []\n")

    def test_madrigal_run(self) -> None:
        self.assertEqual(self._run(str(RELEASE / "madrigal"), "run", "-n", "3"), THREE)

    def test_open_mpi(self) -> None:
        mpirun = "/usr/bin/mpirun.openmpi"
        if not os.path.exists(mpirun):
            self.skipTest(f"no {mpirun}")
        self.assertEqual(self._run(mpirun, "--oversubscribe", "-n", "3"), THREE)

    def test_mpich(self) -> None:
        hydra = RELEASE.parent / "mpi" / "mpich" / "bin" / "mpiexec.hydra"
        if not hydra.exists():
            self.skipTest(f"no {hydra}: tests/mpi/setup --light")
        self.assertEqual(self._run(str(hydra), "-n", "3"), THREE)


if __name__ == "__main__":
    unittest.main()
