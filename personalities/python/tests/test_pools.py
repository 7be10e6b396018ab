"""Pools (FEATURES I4), with a daemon of one host on loopback."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from tree import RELEASE, ROOT, WATCHDOG, environment, output, start

import madrigal

COMMAND = os.environ.get("MADRIGAL", str(RELEASE / "madrigal"))

# A member that the test kills.
MEMBER = ("import sys, time, madrigal\n"
          "runtime = madrigal.Runtime()\n"
          "pool = madrigal.Pool(runtime, sys.argv[1], blob=b'mine')\n"
          "print(pool.id, pool.elect('master'), flush=True)\n"
          "time.sleep(60)\n")


class Pools(unittest.TestCase):
    """Processes of one host."""

    @classmethod
    def setUpClass(cls) -> None:
        if not Path(COMMAND).exists():
            raise unittest.SkipTest(f"no {COMMAND}: make build")
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        grid = Path(folder.name) / "grid.toml"
        grid.write_text(f"[site.s]\nhosts = {{ h0 = '127.0.0.1:{port}' }}\n")
        before = os.environ.get("XDG_RUNTIME_DIR")
        os.environ["XDG_RUNTIME_DIR"] = folder.name

        def restore() -> None:
            os.environ.pop("XDG_RUNTIME_DIR")
            if before is not None:
                os.environ["XDG_RUNTIME_DIR"] = before

        cls.addClassCleanup(restore)
        daemon = subprocess.Popen([COMMAND, "up", "--foreground", "--grid", str(grid), "--host", "h0"], stderr=subprocess.DEVNULL)
        cls.addClassCleanup(daemon.wait)
        cls.addClassCleanup(daemon.terminate)
        end = time.monotonic() + WATCHDOG
        while not (Path(folder.name) / "madrigal" / "daemon.sock").exists():
            if time.monotonic() > end:
                raise AssertionError("the daemon is not up")
            time.sleep(0.01)

    def setUp(self) -> None:
        self.runtime = madrigal.Runtime()
        self.addCleanup(self.runtime.close)

    def test_another_wins_when_the_winner_is_killed(self) -> None:
        child = start(MEMBER, "race")
        self.addCleanup(child.stdout.close)
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        other, winner = map(int, child.stdout.readline().split())
        self.assertEqual(other, winner)
        with madrigal.Pool(self.runtime, "race") as pool:
            self.assertEqual(pool.elect("master"), other)
            self.assertEqual((pool.blob(other), pool.location(other), pool.members), (b"mine", "h0@s", [other, pool.id]))
            os.kill(child.pid, signal.SIGKILL)
            kinds = []
            while "vacant" not in kinds:
                kinds.append(pool.next_event(timeout=WATCHDOG).kind)
            self.assertEqual(kinds, ["joined", "joined", "elected", "died", "vacant"])
            self.assertEqual(pool.elect("master"), pool.id)

    def test_attributes_and_signals(self) -> None:
        with madrigal.Pool(self.runtime, "p", timeout=WATCHDOG) as pool:
            pool.set("epoch", b"\x00\x01")
            pool.set("role", b"", own=True)
            self.assertEqual((pool.get("epoch"), pool.get("role", pool.id), pool.get("role")), (b"\x00\x01", b"", None))
            pool.set("epoch", None)
            self.assertIsNone(pool.get("epoch"))
            pool.signal("Größe", to=[pool.id])
            self.assertTrue(select.select([pool], [], [], WATCHDOG)[0])
            told = list(pool.events(timeout=0))
            self.assertEqual([event.kind for event in told], ["joined", "set", "set", "set", "signal"])
            self.assertEqual((told[-1].text, told[-1].member), ("Größe", pool.id))
            with self.assertRaises(madrigal.Gone):
                pool.signal("x", to=[77])
            pool.terminate()
            pool.wait_terminated(timeout=WATCHDOG)
            with self.assertRaises(madrigal.Refused):
                madrigal.Pool(self.runtime, "p")

    def test_a_closed_pool_waits_for_all(self) -> None:
        with self.assertRaisesRegex(madrigal.TimedOut, "1 of 2 members of pool two have joined"):
            madrigal.Pool(self.runtime, "two", size=2, timeout=0.2)
        with self.assertRaises(madrigal.ArgumentError):
            madrigal.Pool(self.runtime, "no name")

    def test_the_example_needs_a_name_alone(self) -> None:
        script = [sys.executable, str(ROOT / "examples" / "python" / "pool.py"), "demo", "3"]
        all_three = [subprocess.Popen(script, env=environment(), stdout=subprocess.PIPE, text=True) for _ in range(3)]
        self.assertEqual("".join(output(one) for one in all_three), "from h0 [0, 1, 2]\n")


if __name__ == "__main__":
    unittest.main()
