"""Send ports and receive ports (FEATURES I1, I2, I3, P3)."""

from __future__ import annotations

import array
import os
import signal
import subprocess
import time
import unittest

from tree import ROOT, WATCHDOG, output, start

import madrigal
from madrigal import ports

# A process with a receive port, whose address it tells; then runs what the test adds.
PEER = ("import array, sys, time, madrigal\n"
        "runtime = madrigal.Runtime()\n"
        "port = madrigal.ReceivePort(runtime, 'in', 'unit=metre')\n"
        "print(port.address, flush=True)\n")


class Ports(unittest.TestCase):
    """A send port here, a receive port in another process."""

    def setUp(self) -> None:
        self.runtime = madrigal.Runtime()
        self.addCleanup(self.runtime.close)

    def peer(self, program: str) -> "tuple[subprocess.Popen[str], str]":
        child = start(PEER + program)
        self.addCleanup(child.stdout.close)
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        return child, child.stdout.readline().strip()

    def test_items_come_as_they_were_sent(self) -> None:
        child, address = self.peer("with port.receive(timeout=60) as message:\n"
                                   "    got = []\n"
                                   "    while (item := message.take()) is not None: got.append(item)\n"
                                   "print(message.sender, got[:4], list(got[4]), got[5] == array.array('d', range(100000)), got[6:])\n"
                                   "with port.receive(timeout=60) as message:\n"
                                   "    room = array.array('f', bytes(40000))\n"
                                   "    message.take_into(room)\n"
                                   "    print(sum(room))\n")
        with madrigal.SendPort(self.runtime, "out", "unit=metre") as out:
            out.connect(address, timeout=WATCHDOG)
            long = array.array("d", range(100000))
            self.assertEqual(out.send(7, -1.5, "Größe", True, array.array("h", [1, -2]), long, b""), 1)
            with out.message() as message:
                message.begin_record()
                message.end_record()
            self.assertEqual(out.send(array.array("f", [0.5] * 10000)), 1)
        said = output(child).splitlines()
        self.assertEqual(said[0], "out [7, -1.5, 'Größe', 1] [1, -2] True [array('B')]")
        self.assertEqual(said[1], "5000.0")

    def test_ports_of_another_type_are_refused_with_the_key(self) -> None:
        _, address = self.peer("port.receive(timeout=60)\n")
        out = madrigal.SendPort(self.runtime, "out", "unit=foot")
        with self.assertRaisesRegex(madrigal.Refused, "unit=foot, the receive port unit=metre"):
            out.connect(address, timeout=WATCHDOG)
        with self.assertRaises(madrigal.Gone):
            out.send(1)
        with self.assertRaises(madrigal.ArgumentError):
            out.connect("nowhere")
        with self.assertRaises(TypeError):
            out.send(object())

    def test_a_stack_carries_the_messages(self) -> None:
        kind = "unit=metre, stack=adoc/stripe(2)/tcp"
        child, address = self.peer(f"port = madrigal.ReceivePort(runtime, 'all', {kind!r})\n"
                                   "print(port.address, flush=True)\n"
                                   "with port.receive(timeout=60) as message:\n"
                                   "    print(message.take(), message.take() == array.array('d', range(100000)))\n")
        stacked = child.stdout.readline().strip()
        with madrigal.SendPort(self.runtime, "out", kind) as out:
            with self.assertRaisesRegex(madrigal.Refused, r"stack=adoc/stripe\(2\)/tcp, the receive port no stack"):
                out.connect(address, timeout=WATCHDOG)
            out.connect(stacked, timeout=WATCHDOG)
            self.assertEqual(out.send(7, array.array("d", range(100000))), 1)
        self.assertEqual(output(child).splitlines(), ["7 True"])
        with self.assertRaisesRegex(madrigal.Error, "what is enciphered cannot be compressed"):
            madrigal.SendPort(self.runtime, "out", "stack=tls/adoc/tcp")

    def test_a_receiver_that_is_killed_is_told(self) -> None:
        child, address = self.peer("while True: port.receive(timeout=60).close()\n")
        out = madrigal.SendPort(self.runtime, "out", "unit=metre")
        out.connect(address, timeout=WATCHDOG)
        self.assertEqual(out.send(1), 1)
        os.kill(child.pid, signal.SIGKILL)
        end = time.monotonic() + WATCHDOG
        while not (changes := out.changes()) and time.monotonic() < end:
            time.sleep(0.01)
        self.assertEqual([(change["change"], change["port"]) for change in changes], [("lost", address)])

    def test_one_message_at_a_time(self) -> None:
        port = madrigal.ReceivePort(self.runtime, "own")
        with self.assertRaises(madrigal.TimedOut):
            port.receive(timeout=0)
        out = madrigal.SendPort(self.runtime, "out")
        out.connect(port.address, timeout=WATCHDOG)
        out.send(1, "a")
        out.send(2, "b")
        message = port.receive(timeout=WATCHDOG)
        with self.assertRaises(madrigal.Busy):
            port.receive(timeout=0)
        self.assertEqual(message.take(), 1)
        with self.assertRaises(madrigal.Mismatch):
            message.take_into(bytearray(1))
        message.close()
        self.assertEqual(port.receive(timeout=WATCHDOG).take(), 2)
        self.assertEqual([change["change"] for change in port.changes()], ["connected"])

    def test_an_array_of_much_is_taken_if_it_is_wanted(self) -> None:
        port, out = madrigal.ReceivePort(self.runtime, "own"), madrigal.SendPort(self.runtime, "out")
        out.connect(port.address, timeout=WATCHDOG)
        out.send(array.array("B", bytes(1000)))
        with port.receive(timeout=WATCHDOG) as message:
            with self.assertRaises(ValueError):
                message.take(most=999)
            self.assertEqual(len(message.take(most=1000)), 1000)

    def test_kinds_are_those_of_the_header(self) -> None:
        header = (ROOT / "personalities" / "capi" / "include" / "madrigal.h").read_text()
        for name, code in (("INT8", 1), ("UINT8", 2), ("INT64", ports._INT64), ("FLOAT64", ports._FLOAT64), ("ITEM_ARRAY", ports._ARRAY),
                           ("ITEM_TEXT", ports._TEXT), ("ITEM_BEGIN", ports._BEGIN), ("ITEM_END", ports._END)):
            self.assertIn(f"#define MDG_{name} {code}\n", header)


if __name__ == "__main__":
    unittest.main()
