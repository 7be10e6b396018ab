"""The programs of docs/python.md are those of examples/python, and do what they say."""

from __future__ import annotations

import re
import subprocess
import sys
import unittest

from tree import RELEASE, ROOT, WATCHDOG, environment

EXAMPLES = ROOT / "examples" / "python"


class Examples(unittest.TestCase):
    """Each once."""

    def test_the_guide_shows_them(self) -> None:
        shown = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / "python.md").read_text(), re.DOTALL | re.MULTILINE)
        self.assertEqual(sorted(shown), sorted(path.read_text() for path in EXAMPLES.iterdir()))

    def test_echo(self) -> None:
        script = [sys.executable, str(EXAMPLES / "echo.py")]
        server = subprocess.Popen([*script, "serve"], env=environment(), stdout=subprocess.PIPE, text=True)
        try:
            self.assertEqual(self._run(*script, "ask", server.stdout.readline().strip()), "hello by shm\n")
            server.communicate(timeout=WATCHDOG)
            self.assertEqual(server.returncode, 0)
        finally:
            server.kill()
            server.communicate()

    def test_streams(self) -> None:
        self.assertEqual(self._run(sys.executable, str(EXAMPLES / "streams.py")), "IS ANYBODY THERE?\n")

    def test_parameters(self) -> None:
        script = [sys.executable, str(EXAMPLES / "parameters.py")]
        self.assertEqual(self._run(str(RELEASE / "madrigal"), "run", "-n", "4", *script), "the parameters' sum is 300000.0\n")

    def test_workers(self) -> None:
        script = [sys.executable, str(EXAMPLES / "workers.py")]
        told = self._run(str(RELEASE / "madrigal"), "run", "-n", "4", *script)
        self.assertEqual(told, "9592 primes below 100000 counted by 3 workers\n")

    def test_coupled(self) -> None:
        script = [sys.executable, str(EXAMPLES / "coupled.py")]
        ocean = subprocess.Popen([*script, "ocean"], env=environment(), stdout=subprocess.PIPE, text=True)
        try:
            self.assertEqual(self._run(*script, "air", ocean.stdout.readline().strip()), "the air has 284.000 K\n")
            self.assertEqual(ocean.communicate(timeout=WATCHDOG), ("the ocean has 284.000 K\n", None))
            self.assertEqual(ocean.returncode, 0)
        finally:
            ocean.kill()
            ocean.communicate()

    def test_pipeline(self) -> None:
        self.assertEqual(self._run(sys.executable, str(EXAMPLES / "pipeline.py")), "the sum is 328350.0 by squares\n")

    def test_mailbox(self) -> None:
        lines = [f"step {step} begins with {20 * step} of 100000 bytes\n" for step in (1, 2, 3)]
        self.assertEqual(self._run(sys.executable, str(EXAMPLES / "mailbox.py")), "".join(lines))

    def _run(self, *command: str) -> str:
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=WATCHDOG)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout


if __name__ == "__main__":
    unittest.main()
