"""Mailboxes and shared buffers (FEATURES L3, L4, L6, L10, L11)."""

from __future__ import annotations

import array
import os
import select
import signal
import subprocess
import unittest

from tree import ROOT, WATCHDOG, output, start

import madrigal
from madrigal import mailbox

# A process with a mailbox, whose address it tells; then runs what the test adds.
PEER = ("import os, sys, time, madrigal\n"
        "runtime = madrigal.Runtime()\n"
        "box = madrigal.Mailbox(runtime, 'in', 4)\n"
        "print(box.address, flush=True)\n")


class Mailboxes(unittest.TestCase):
    """A mailbox here, one in another process."""

    def setUp(self) -> None:
        self.runtime = madrigal.Runtime()
        self.addCleanup(self.runtime.close)
        self.box = madrigal.Mailbox(self.runtime, "out")

    def peer(self, program: str) -> "tuple[subprocess.Popen[str], str]":
        child = start(PEER + program, stdin=subprocess.PIPE)
        self.addCleanup(child.stdout.close)
        self.addCleanup(child.stdin.close)
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        return child, child.stdout.readline().strip()

    def test_headers_come_before_data(self) -> None:
        child, address = self.peer("first = box.wait(kind='urgent', timeout=60)\n"
                                   "print([(header.kind, header.tag, header.size, header.policy, bool(header.holder)) for header in box.list()])\n"
                                   "print(box.get(first).memory.tobytes(), [header.tag for header in box.list(source=first.source, tag=2)])\n"
                                   "box.drop(box.wait(tag=1))\n"
                                   "with box.get(box.wait(tag=2), timeout=60) as buffer: print(sum(buffer.memory), buffer.shared)\n")
        self.assertEqual(self.box.put(address, b"lost", tag=1, policy="sender"), 1)
        self.assertEqual(self.box.put([address], array.array("B", [3] * 100_000), tag=2, policy="sender"), 1)
        self.assertEqual(self.box.put(address, b"now", tag=3, kind="urgent", timeout=WATCHDOG), 1)
        self.box.flush(timeout=WATCHDOG)
        said = output(child).splitlines()
        self.assertEqual(said, ["[('urgent', 3, 3, 'receiver', False), ('data', 1, 4, 'sender', True), ('data', 2, 100000, 'sender', True)]",
                                "b'now' [2]", "300000 False"])

    def test_a_shared_buffer_is_one_memory(self) -> None:
        child, address = self.peer("with box.get(box.wait(timeout=60)) as buffer:\n"
                                   "    print(bytes(buffer.memory[:3]), len(buffer.memory), buffer.shared, buffer.memory.readonly)\n")
        with madrigal.Draft(1 << 20) as draft:
            draft.memory[:3] = b"abc"
            view = draft.memory
            with self.assertRaises(BufferError):
                draft.seal()
            del view
            buffer = draft.seal()
        self.assertTrue(draft.closed and buffer.shared)
        self.box.put(address, buffer, policy="sender")
        self.box.flush(timeout=WATCHDOG)
        self.assertEqual(output(child), "b'abc' 1048576 True True\n")
        memory = buffer.memory
        self.runtime.close()
        self.assertEqual(memory[:3].tobytes(), b"abc", "it belongs to no runtime")
        with self.assertRaises(BufferError):
            buffer.close()
        with self.assertRaises(TypeError):
            memory[0] = 1
        del memory
        buffer.close()

    def test_who_does_not_read_is_named(self) -> None:
        child, address = self.peer("box.turn()\n")
        for _ in range(4):
            self.box.put(address, b"x", timeout=WATCHDOG)
        with self.assertRaisesRegex(madrigal.TimedOut, "`in` is full: 4 data messages"):
            self.box.put(address, b"x", timeout=0.3)
        self.assertEqual(self.box.put(address, b"x", kind="management", timeout=WATCHDOG), 1)
        os.kill(child.pid, signal.SIGKILL)
        with self.assertRaises(madrigal.Lost):
            self.box.put(address, b"x", timeout=WATCHDOG)

    def test_data_of_a_third_process_that_is_killed_are_lost(self) -> None:
        store, at = self.peer("box.offer(1 << 24)\nbox.turn()\n")
        child, address = self.peer("header = box.wait(timeout=60)\n"
                                   "print(header.holder, flush=True)\n"
                                   "sys.stdin.readline()\n"
                                   "try: box.get(header, timeout=60)\n"
                                   "except madrigal.Lost as error: print(header.holder in str(error), box.list() == [header])\n"
                                   "box.drop(header)\n")
        with self.assertRaises(madrigal.Error):
            self.box.put(address, b"x", policy="elsewhere", timeout=WATCHDOG)
        self.box.add_store(at)
        self.box.put(address, bytes(100_000), policy="elsewhere", timeout=WATCHDOG)
        self.assertEqual(self.box.why()["stores"], [{"address": at, "offers": 1 << 24, "held": 104096, "asked": 0}])
        while not select.select([child.stdout], [], [], 0)[0]:
            self.box.turn(timeout=0.01)
        self.assertEqual(len(child.stdout.readline().strip()), 12)
        os.kill(store.pid, signal.SIGKILL)
        store.wait()
        child.stdin.write("\n")
        child.stdin.flush()
        self.assertEqual(output(child), "True True\n")

    def test_misuse(self) -> None:
        self.box.put(self.box.address, b"x", timeout=WATCHDOG)
        header = self.box.wait(timeout=WATCHDOG)
        self.assertEqual(header.sequence, 1)
        self.assertEqual(bytes(self.box.get(header).memory), b"x")
        with self.assertRaises(madrigal.Gone):
            self.box.get(header, timeout=0)
        with self.assertRaises(madrigal.Gone):
            self.box.drop(header)
        with self.assertRaises(madrigal.TimedOut):
            self.box.wait(timeout=0)
        with self.assertRaises(madrigal.ArgumentError):
            self.box.put([self.box.address] * 2, b"x")
        with self.assertRaises(ValueError):
            self.box.put(self.box.address, b"x", kind="odd")
        with self.assertRaises(madrigal.Refused):
            self.box.put("none@" + self.box.address.split("@")[1], b"x", timeout=WATCHDOG)
        with self.assertRaises(madrigal.ArgumentError):
            madrigal.Draft(0)
        self.assertEqual([change["change"] for change in self.box.changes()], ["connected"])

    def test_codes_are_those_of_the_header(self) -> None:
        header = (ROOT / "personalities" / "capi" / "include" / "madrigal.h").read_text()
        policies = ("AT_RECEIVER", "AT_SENDER", "AT_THIRD")
        for names in ([kind.upper() for kind in mailbox.KINDS], policies):
            for code, name in enumerate(names):
                self.assertIn(f"#define MDG_{name} {code}\n", header)
        self.assertEqual(len(policies), len(mailbox.POLICIES))
        self.assertIn(f"#define MDG_ANY_KIND {mailbox._ANY_KIND}\n", header)


if __name__ == "__main__":
    unittest.main()
