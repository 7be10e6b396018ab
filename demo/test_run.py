"""What the demo says beside a ratio below 1."""

import contextlib
import io
import re
import unittest
from unittest import mock

import run


class Process:
    """A server that is there."""

    pid = 7


class Faked(run.Demo):
    """No program runs: only what is printed counts."""

    def __init__(self):
        super().__init__(run.Sockets(), "/nowhere")

    def serve(self, wrap):
        return Process(), 1


def shown(others, plain, wrapped):
    """What is printed with these rates, while other programs use so many CPUs."""
    out = io.StringIO()
    with (mock.patch.object(run, "used_by_others", lambda: others), mock.patch.object(run, "compare", lambda *_: (plain, wrapped, "")),
          contextlib.redirect_stdout(out)):
        run.show(Faked())
    return out.getvalue()


class Shown(unittest.TestCase):
    """A machine that is busy, and a ratio below 1, are explained before the ratio."""

    def test_a_busy_machine(self):
        text = shown(run.os.cpu_count() * 0.9, 100.0, 90.0)
        self.assertLess(text.index("this machine is busy"), text.index("0.90"))
        self.assertLess(text.index("The next ratio is below 1"), text.index("0.90"))

    def test_a_quiet_machine(self):
        text = shown(0.0, 100.0, 200.0)
        self.assertNotIn("busy", text)
        self.assertNotIn("below 1", text)
        self.assertTrue(re.search(r"1 +100 +200 +2\.00", text), text)


if __name__ == "__main__":
    unittest.main()
