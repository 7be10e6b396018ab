"""The wheel: built, installed where nothing of this tree is, used."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

from tree import PACKAGE, RELEASE, WATCHDOG

NEEDED = ("madrigal", "libmadrigal-syswrap.so", "libmadrigal-fi.so")


@unittest.skipUnless(all((RELEASE / name).exists() for name in NEEDED), f"no {', '.join(NEEDED)} in {RELEASE}: make build")
class Wheel(unittest.TestCase):
    """One for every version of Python 3."""

    def test_it_installs_and_runs_without_this_tree(self) -> None:
        with tempfile.TemporaryDirectory(prefix="madrigal-wheel.") as scratch:
            folder = Path(scratch)
            built = self._run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder / "wheels", PACKAGE, fails=True)
            if built.returncode:
                last = built.stderr.strip().splitlines()[-1:]
                self.skipTest(f"pip cannot build here: {' '.join(last)}")
            (wheel,) = (folder / "wheels").iterdir()
            self.assertRegex(wheel.name, r"^madrigal_network-[\d.]+-py3-none-(manylinux_2_\d+|linux)_x86_64\.whl$")
            names = set(zipfile.ZipFile(wheel).namelist())
            self.assertTrue({"madrigal/py.typed", "madrigal/native/libmadrigal.so.0", "madrigal/native/madrigal"} <= names, names)

            self._audit(wheel)
            self._run(sys.executable, "-m", "venv", folder / "venv")
            python = folder / "venv" / "bin" / "python"
            self._run(python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", wheel)
            program = ("import madrigal\n"
                       "runtime = madrigal.Runtime()\n"
                       "acceptor = runtime.listen('tcp://127.0.0.1:0')\n"
                       "link = runtime.connect(acceptor.address); peer = acceptor.accept()\n"
                       "link.write(b'from a wheel'); print(peer.read(), madrigal.__file__)\n")
            said = self._run(python, "-c", program, cwd=folder).stdout
            self.assertIn("b'from a wheel'", said)
            self.assertIn(str(folder), said)
            command = folder / "venv" / "bin" / "madrigal"
            self.assertEqual(self._run(command, "exec", "--", "echo", "wrapped").stdout, "wrapped\n")

    def _audit(self, wheel: Path) -> None:
        """The tag is not older than what the libraries need."""
        try:
            import auditwheel  # noqa: F401
        except ImportError:
            return
        said = " ".join(self._run(sys.executable, "-m", "auditwheel", "show", wheel).stdout.split())
        needs, named = re.search(r'constrains the platform tag to "manylinux_2_(\d+)_', said), re.search(r"manylinux_2_(\d+)_", wheel.name)
        self.assertTrue(needs and named, said)
        self.assertLessEqual(int(needs[1]), int(named[1]), said)

    def _run(self, *command: object, fails: bool = False, cwd: object = "/") -> "subprocess.CompletedProcess[str]":
        hidden = ("PYTHONPATH", "MADRIGAL_LIBRARY")
        env = {name: value for name, value in os.environ.items() if name not in hidden}
        done = subprocess.run([str(word) for word in command], cwd=str(cwd), env=env, capture_output=True, text=True, timeout=5 * WATCHDOG)
        if not fails:
            self.assertEqual(done.returncode, 0, done.stderr)
        return done


if __name__ == "__main__":
    unittest.main()
