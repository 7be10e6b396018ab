"""Links, by every driver, for programs that wait in calls (FEATURES B2, B3; docs/python.md)."""

from __future__ import annotations

import array
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from tree import RELEASE, WATCHDOG, environment, output, start

import madrigal

ADDRESSES = ("tcp://127.0.0.1:0", f"shm://python-{os.getpid()}", f"loopback://python-{os.getpid()}", "adoc/stripe(2)/tcp://127.0.0.1:0")


class Pair:
    """A runtime with a link, both ends."""

    def __init__(self, at: str) -> None:
        self.runtime = madrigal.Runtime()
        self.acceptor = self.runtime.listen(at)
        self.client = self.runtime.connect(self.acceptor.address, timeout=WATCHDOG)
        self.server = self.acceptor.accept(timeout=WATCHDOG)

    def __enter__(self) -> "Pair":
        return self

    def __exit__(self, *_: object) -> None:
        self.runtime.close()


class Links(unittest.TestCase):
    """Streams of bytes."""

    def test_every_driver_carries_bytes_both_ways(self) -> None:
        for at in ADDRESSES:
            with self.subTest(at), Pair(at) as pair:
                self.assertEqual(pair.client.write(b"question"), 8)
                self.assertEqual(pair.server.read(100), b"question")
                pair.server.write(memoryview(b"..answer")[2:])
                self.assertEqual(pair.client.read(3), b"ans")
                self.assertEqual(pair.client.read(), b"wer")
                pair.client.close()
                self.assertEqual(pair.server.read(), b"")

    def test_ten_megabytes_arrive_whole_from_and_into_memory_of_its_own(self) -> None:
        sent = array.array("d", (i * 0.5 for i in range(1_250_000)))
        for at in ADDRESSES:
            with self.subTest(at), Pair(at) as pair:
                got = array.array("d", bytes(10_000_000))
                reader = threading.Thread(target=pair.server.read_exactly, args=(got, WATCHDOG))
                reader.start()
                self.assertEqual(pair.client.write(sent), 10_000_000)
                reader.join(WATCHDOG)
                self.assertEqual(got, sent)

    def test_both_ends_have_the_same_stack_or_there_is_no_link(self) -> None:
        with madrigal.Runtime() as runtime:
            acceptor = runtime.listen("adoc/tcp://127.0.0.1:0")
            at = acceptor.address.removeprefix("adoc/")
            self.assertTrue(at.startswith("tcp://"), at)
            for stack, why in (("stripe(2)", "wanted by one end only"), ("adoc/stripe(2)", "`stripe(2)` is wanted by one end only")):
                with self.assertRaises(madrigal.Error) as told:
                    runtime.connect(f"{stack}/{at}", timeout=WATCHDOG)
                self.assertIn(why, str(told.exception))
            for address, why in (("adoc/adoc/tcp://127.0.0.1:1", "twice"), ("stripe(2)/tls/tcp://127.0.0.1:1", "write `tls/stripe(N)`")):
                with self.assertRaises(madrigal.Error) as told:
                    runtime.connect(address, timeout=WATCHDOG)
                self.assertIn(why, str(told.exception))

    def test_links_are_enciphered_between_processes_with_certificates(self) -> None:
        program = ("import sys, madrigal\n"
                   "with madrigal.Runtime() as runtime:\n"
                   "    acceptor = runtime.listen('tls/tcp://127.0.0.1:0')\n"
                   "    link = runtime.connect(acceptor.address, timeout=60)\n"
                   "    server = acceptor.accept(timeout=60)\n"
                   "    link.write(b'secret')\n"
                   "    print(server.read(timeout=60).decode())\n")
        with tempfile.TemporaryDirectory() as folder:
            variables = environment(MADRIGAL_CONFIG_DIR=folder)
            run = {"env": variables, "capture_output": True, "text": True, "timeout": WATCHDOG}
            without = subprocess.run([sys.executable, "-c", program], **run)
            self.assertIn("there is no certificate of a grid", without.stderr)
            tool = str(RELEASE / "madrigal")
            for words in (["ca", "init", "test"], ["login", "--user", "ann"]):
                done = subprocess.run([tool, *words], **run)
                self.assertEqual(done.returncode, 0, done.stderr)
            done = subprocess.run([sys.executable, "-c", program], **run)
            self.assertEqual((done.stdout, done.stderr), ("secret\n", ""))

    def test_a_write_that_nobody_reads_says_how_much_was_taken(self) -> None:
        with Pair(ADDRESSES[1]) as pair:
            data = bytes(64 << 20)
            taken = pair.client.write(data, timeout=0.3)
            self.assertTrue(0 < taken < len(data), taken)
            with self.assertRaises(madrigal.TimedOut):
                pair.client.write(data, timeout=0.01)
            room = bytearray(taken)
            pair.server.read_exactly(room, WATCHDOG)

    def test_memory_that_is_lent_is_given_back(self) -> None:
        with Pair(ADDRESSES[0]) as pair:
            room = bytearray(10)
            with self.assertRaises(madrigal.TimedOut):
                pair.server.read_into(room, timeout=0)
            # A bytearray that somebody has a view of cannot grow.
            room.extend(b"more")
            pair.client.write(room)
            room.extend(b"more")

    def test_memory_that_cannot_be_lent(self) -> None:
        with Pair(ADDRESSES[0]) as pair:
            with self.assertRaises(BufferError):
                pair.client.read_into(b"not to be written", timeout=0)
            with self.assertRaises(BufferError):
                pair.client.write(memoryview(b"every other byte")[::2])
            with self.assertRaises(TypeError):
                pair.client.write("text")

    def test_a_stream_that_ends_early(self) -> None:
        with Pair(ADDRESSES[0]) as pair:
            pair.client.write(b"four")
            pair.client.close()
            with self.assertRaisesRegex(EOFError, "6 bytes early"):
                pair.server.read_exactly(bytearray(10))

    def test_threads_wait_beside_each_other(self) -> None:
        with Pair(ADDRESSES[1]) as pair:
            seen: list[bytes] = []
            waiter = threading.Thread(target=lambda: seen.append(pair.server.read(10, WATCHDOG)))
            waiter.start()
            time.sleep(0.05)
            pair.client.write(b"hello")
            waiter.join(WATCHDOG)
            self.assertEqual(seen, [b"hello"])

    def test_a_card_goes_by_the_best_path_and_says_why(self) -> None:
        with madrigal.Runtime() as runtime:
            acceptor = runtime.serve(f"python-card-{os.getpid()}")
            link = runtime.connect(acceptor.address, timeout=WATCHDOG)
            why = link.why()
            self.assertEqual(why["driver"], "loopback")
            self.assertIn("tcp", {other["driver"] for other in why["rejected"]})

    def test_weights_are_changed_while_it_runs(self) -> None:
        with madrigal.Runtime() as runtime:
            runtime.set_weight("tcp", 3)
            runtime.set_spin(0.00001)
            self.assertEqual(runtime.work_done("shm"), 0)
            with self.assertRaisesRegex(madrigal.ArgumentError, "loopback"):
                runtime.set_weight("carrier pigeon", 1)


class Failures(unittest.TestCase):
    """What goes wrong is said, as the exception of Python's own that one would expect."""

    def test_nobody_listens(self) -> None:
        with madrigal.Runtime() as runtime, self.assertRaisesRegex(ConnectionRefusedError, "127.0.0.1:1") as raised:
            runtime.connect("tcp://127.0.0.1:1", timeout=WATCHDOG)
        self.assertEqual((type(raised.exception), raised.exception.code), (madrigal.Refused, -8))

    def test_no_address_at_all(self) -> None:
        with madrigal.Runtime() as runtime, self.assertRaisesRegex(ValueError, "try `tcp://bogus`"):
            runtime.connect("bogus")

    def test_a_time_that_passes(self) -> None:
        with Pair(ADDRESSES[0]) as pair:
            for wait in (0, 0.05, 0.25):
                began = time.monotonic()
                with self.assertRaises(TimeoutError):
                    pair.server.read(timeout=wait)
                self.assertGreaterEqual(time.monotonic() - began, wait * 0.9)
                with self.assertRaises(madrigal.TimedOut):
                    pair.acceptor.accept(timeout=wait)

    def test_what_was_closed(self) -> None:
        with Pair(ADDRESSES[0]) as pair:
            pair.client.close()
            pair.client.close()
            self.assertTrue(pair.client.closed)
            with self.assertRaises(madrigal.Closed):
                pair.client.write(b"late")

    def test_a_peer_that_is_killed(self) -> None:
        with madrigal.Runtime() as runtime:
            acceptor = runtime.listen(f"shm://python-killed-{os.getpid()}")
            child = start("import madrigal, sys, time\n"
                          "link = madrigal.Runtime().connect(sys.argv[1])\n"
                          "link.write(b'here')\n"
                          "time.sleep(600)\n", acceptor.address)
            link = acceptor.accept(timeout=WATCHDOG)
            self.assertEqual(link.read(10, WATCHDOG), b"here")
            child.kill()
            child.communicate()
            with self.assertRaises(madrigal.Reset):
                link.read(10, WATCHDOG)
            with self.assertRaises(BrokenPipeError):
                link.write(b"anybody?")

    def test_ctrl_c_ends_a_wait(self) -> None:
        # Where a shell runs the tests in the background, they ignore SIGINT.
        child = start("import signal, madrigal\n"
                      "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
                      "runtime = madrigal.Runtime()\n"
                      "acceptor = runtime.listen('loopback://ctrl-c')\n"
                      "print('waiting', flush=True)\n"
                      "acceptor.accept()\n", stderr=subprocess.PIPE)
        self.assertEqual(child.stdout.readline(), "waiting\n")
        time.sleep(0.2)
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=WATCHDOG)
        self.assertIn("KeyboardInterrupt", said)

    def test_a_forked_child_is_told(self) -> None:
        child = start("import os, madrigal\n"
                      "runtime = madrigal.Runtime()\n"
                      "if os.fork() == 0:\n"
                      "    try:\n"
                      "        runtime.listen('loopback://child')\n"
                      "    except madrigal.Forked:\n"
                      "        os._exit(7)\n"
                      "    os._exit(1)\n"
                      "print(os.waitstatus_to_exitcode(os.wait()[1]))\n")
        self.assertEqual(output(child), "7\n")


class Wrapped(unittest.TestCase):
    """Beside SysWrap, in one process (FEATURES A1)."""

    def test_sockets_and_links_of_a_wrapped_program(self) -> None:
        from tree import RELEASE
        program = ("import socket, madrigal\n"
                   "listener = socket.create_server(('127.0.0.1', 0))\n"
                   "one = socket.create_connection(listener.getsockname()); other, _ = listener.accept()\n"
                   "runtime = madrigal.Runtime(); acceptor = runtime.listen('loopback://beside')\n"
                   "link = runtime.connect(acceptor.address); peer = acceptor.accept()\n"
                   "for _ in range(2000):\n"
                   "    one.sendall(b'x' * 100); link.write(b'y' * 100)\n"
                   "    assert other.recv(100, socket.MSG_WAITALL) == b'x' * 100 and peer.read(100) == b'y' * 100\n"
                   "print('ok')\n")
        done = subprocess.run([RELEASE / "madrigal", "exec", "--", sys.executable, "-c", program], env=environment(), stdout=subprocess.PIPE,
                              text=True, timeout=WATCHDOG, check=True)
        self.assertEqual(done.stdout, "ok\n")


if __name__ == "__main__":
    unittest.main()
