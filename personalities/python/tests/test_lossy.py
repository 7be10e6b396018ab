"""Links of messages of which a part may be lost (FEATURES B11)."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import unittest

from tree import RELEASE, ROOT, WATCHDOG, environment

from madrigal import _library, lossy

# Both ends of a link in one process: turning the one turns the other.
PROGRAM = """
import madrigal
classes = [madrigal.MessageClass(tolerance=100, granularity=188, must=12), madrigal.MessageClass()]
with madrigal.Runtime() as runtime:
    acceptor = madrigal.LossyAcceptor(runtime, 'vrp/udp://127.0.0.1:0', classes)
    link = madrigal.LossyLink.connect(runtime, acceptor.address, classes)
    server = acceptor.accept(timeout=60)
    print(link.why()['driver'], acceptor.address.startswith('vrp/udp://127.0.0.1:'), link.address.startswith('udp://127.0.0.1:'))
    print(link.send(b'hello'), link.send(bytearray(3000000), kind=1, within=60, timeout=60))
    got = sorted([server.receive(timeout=60), server.receive(timeout=60)])
    print(got[0], got[1].kind, got[1].number, len(got[1].data), got[1].lost)
    print(sorted([link.settled(timeout=60), link.settled(timeout=60)]))
    try: server.receive(timeout=0.01)
    except madrigal.TimedOut: print('timed out')
    try: link.send(b'', kind=0)
    except madrigal.ArgumentError as error: print('a message of 0 bytes' in str(error))
    try: madrigal.LossyLink.connect(runtime, acceptor.address.replace('vrp', 'vrp(50)'))
    except madrigal.Unreachable as error: print('tolerance 50' in str(error))
    link.flush(timeout=60)
    link.close()
    print(server.receive(timeout=60))
    try: server.send(b'?')
    except madrigal.Gone: print('gone')
"""
SAID = ("vrp/udp True True\n"
        "0 0\n"
        "LossyMessage(kind=0, number=0, data=b'hello', lost=[]) 1 0 3000000 []\n"
        "[Fate(kind=0, number=0, lost=[]), Fate(kind=1, number=0, lost=[])]\n"
        "timed out\nTrue\nTrue\nNone\n")


class Lossy(unittest.TestCase):
    """With a certificate of a grid that is made for that."""

    def test_messages_come_and_both_ends_are_told(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            run = {"env": environment(MADRIGAL_CONFIG_DIR=folder), "capture_output": True, "text": True, "timeout": WATCHDOG}
            for words in (["ca", "init", "test"], ["login", "--user", "ann"]):
                done = subprocess.run([str(RELEASE / "madrigal"), *words], **run)
                self.assertEqual(done.returncode, 0, done.stderr)
            done = subprocess.run([sys.executable, "-c", PROGRAM], **run)
            self.assertEqual(done.stderr, "")
            self.assertTrue(done.stdout.startswith(SAID), done.stdout)

    def test_numbers(self) -> None:
        header = (ROOT / "personalities" / "capi" / "include" / "madrigal.h").read_text()
        for name, value in (("FATE_FAILED", lossy._FAILED), ("EGONE", lossy._GONE), ("ETOOLONG", lossy._TOO_LONG)):
            self.assertIn(f"#define MDG_{name} {value}\n", header)
        self.assertEqual(_library._LONG["mdg_lossy_send"][4], _library._LONG["mdg_lossy_send"][5])

    def test_what_is_told_becomes_spans(self) -> None:
        about, lost = (lossy.c_uint32 * 4)(0, 7, 1, 2), (lossy.c_uint32 * 8)(188, 376, 1000, 1188)
        self.assertEqual(lossy._spans(about, lost), [(188, 376), (1000, 1188)])
        about[2] = lossy._FAILED
        self.assertIsNone(lossy._spans(about, lost))


if __name__ == "__main__":
    unittest.main()
