"""Tests of the parts that could hide a failure. Run: python3 -m unittest discover tests/churn"""

from __future__ import annotations

import random
import socket
import subprocess
import sys
import threading
import time
import unittest
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from bed.combinations import Choice, Combination, short, size
from bed.languages import LANGUAGES, Missing, command
from bed.memory import History, Sample, ring_pages
from bed.running import Outcome

ONE = Combination("c", "c", "default", "both", 20, 60, 20000, "close", "none")
CHOICE = Choice((("c", "c"), ("java", "c")), ("default",), ("both",), (2, 20), (60,), (400, 20000), ("close", "half"), ("none", "fork"))


class Combining(unittest.TestCase):
    def test_sizes(self) -> None:
        self.assertEqual([size(text) for text in ("400", "20k", "1m")], [400, 20000, 1000000])
        self.assertEqual([short(number) for number in (400, 20000, 1000000, 1500)], ["400", "20k", "1m", "1500"])

    def test_everything_with_everything(self) -> None:
        self.assertEqual(len(set(CHOICE.all())), 2 * 2 * 2 * 2 * 2)

    def test_a_seed_repeats_what_is_drawn(self) -> None:
        def first(seed: int) -> list[Combination]:
            drawn = CHOICE.drawn(random.Random(seed))
            return [next(drawn) for _ in range(20)]
        self.assertEqual(first(1), first(1))
        self.assertNotEqual(first(1), first(2))
        self.assertFalse([what for what in first(3) if what.possible()])

    def test_java_does_not_fork(self) -> None:
        self.assertEqual(replace(ONE, beside="fork").possible(), "")
        self.assertIn("java", replace(ONE, server="java", beside="fork").possible())
        self.assertEqual(replace(ONE, server="java", beside="spawn").possible(), "")


class Hearing(unittest.TestCase):
    def test_what_counts(self) -> None:
        outcome = Outcome()
        for line in ("ready", "progress 1 2", "wrong 17 bytes from position 3 of connection 4", "wrong 3 bytes from position 9 of connection 4",
                     "timeout receive of connection 4", "error connect of connection 5: no", "done 3 4", "something else"):
            outcome.hear("client", line)
        self.assertEqual((outcome.wrong, outcome.timeouts, outcome.errors), (20, 1, 1))
        self.assertFalse(outcome.good)
        self.assertIn("client: something else", outcome.said)

    def test_a_death_is_not_good(self) -> None:
        self.assertTrue(Outcome().good)
        self.assertFalse(Outcome(ends=["client ended by SIGSEGV"]).good)


def history(own: list[int], rings: list[int] | None = None) -> History:
    return History([Sample(at * 0.5, mine, 0, ring, 1, 10) for at, (mine, ring) in enumerate(zip(own, rings or [0] * len(own)))])


class Growing(unittest.TestCase):
    def test_what_levels_off_does_not_grow(self) -> None:
        self.assertEqual(history([10000 + 20000 * min(at, 5) for at in range(18)]).growing(), "")

    def test_a_leak_grows(self) -> None:
        self.assertIn("own", history([10000 + 4000 * at for at in range(18)]).growing())
        self.assertEqual(history([10000 + 4000 * at for at in range(18)]).growing(heap=64), "")
        self.assertIn("rings", history([10000] * 18, [3000 * at for at in range(18)]).growing())

    def test_what_came_back_has_not_leaked(self) -> None:
        rings = [30000] * 12 + [60000] * 5
        self.assertIn("rings", history([10000] * 18, [*rings, 60000]).growing())
        self.assertEqual(history([10000] * 18, [*rings, 2000]).growing(), "")

    def test_a_short_look_tells_nothing(self) -> None:
        self.assertEqual(history([10000 * at for at in range(6)]).growing(), "")

    def test_pages_of_rings(self) -> None:
        smaps = ("7f00-7f01 rw-s 00000000 00:01 5   /memfd:madrigal-arena (deleted)\nSize: 262144 kB\nRss:   120 kB\nPss: 60 kB\n"
                 "7f01-7f02 rw-p 00000000 00:00 0   [heap]\nSize: 4 kB\nRss: 4 kB\n"
                 "7f02-7f03 rw-s 00000000 00:01 6   /memfd:madrigal-report (deleted)\nRss:   8 kB\n")
        self.assertEqual(ring_pages(smaps), (128, 2))


class Spoiler:
    """Stands between client and server, and changes one byte of each connection."""

    def __init__(self, target: int, upwards: bool, position: int) -> None:
        self.target, self.upwards, self.position = target, upwards, position
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.open = [self.listener]
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                return
            self.open += [near, far]
            for one, other, spoil in ((near, far, self.upwards), (far, near, not self.upwards)):
                threading.Thread(target=self._carry, args=(one, other, spoil), daemon=True).start()

    def stop(self) -> None:
        """Closes everything."""
        for one in self.open:
            one.close()

    def _carry(self, one: socket.socket, other: socket.socket, spoil: bool) -> None:
        position = 0
        try:
            while data := bytearray(one.recv(65536)):
                if spoil and position <= self.position < position + len(data):
                    data[self.position - position] ^= 1
                position += len(data)
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)
        except OSError:
            pass


class Seeing(unittest.TestCase):
    """A changed byte is seen by each program, whichever way it goes; an unchanged stream never complains."""

    def test_each_language(self) -> None:
        for language in LANGUAGES:
            with self.subTest(language):
                try:
                    words = command(language)
                except Missing as why:
                    self.skipTest(str(why))
                with socket.create_server(("127.0.0.1", 0)) as probe:
                    port = probe.getsockname()[1]
                server = subprocess.Popen([*words, "server", str(port), "none"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                heard: list[str] = []
                ready = threading.Event()

                def listen() -> None:
                    for line in server.stdout:
                        heard.append(line)
                        ready.set()

                threading.Thread(target=listen, daemon=True).start()
                try:
                    self.assertTrue(ready.wait(30))
                    self.assertEqual(self.client(words, port, "half"), [])
                    up = Spoiler(port, True, 5000)
                    self.client(words, up.port, "close")
                    time.sleep(0.3)
                    self.assertTrue([line for line in heard if line.startswith("wrong 1 bytes from position 4984 ")], heard)
                    down = Spoiler(port, False, 5000)
                    told = self.client(words, down.port, "close")
                    self.assertTrue([line for line in told if line.startswith("wrong 1 bytes from position 5000 ")], told)
                    up.stop()
                    down.stop()
                finally:
                    server.kill()
                    server.wait()
                    server.stdout.close()

    def client(self, words: list[str], port: int, end: str) -> list[str]:
        done = subprocess.run([*words, "client", str(port), "2", "60", "20000", end, "1", "none", "7"], capture_output=True, text=True, timeout=60)
        lines = done.stdout.splitlines()
        self.assertTrue(lines and lines[-1].startswith("done "), done)
        self.assertGreater(int(lines[-1].split()[2]), 0)
        return [line for line in lines if not line.startswith(("progress ", "done "))]


if __name__ == "__main__":
    unittest.main()
