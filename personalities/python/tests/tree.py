"""Finds the package in this tree, and starts programs that use it."""

from __future__ import annotations

import os
import subprocess
import sys
import unittest
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1]
ROOT = PACKAGE.parents[1]
RELEASE = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
sys.path.insert(0, str(PACKAGE / "src"))

if not (RELEASE / "libmadrigal.so.0").exists() and "MADRIGAL_LIBRARY" not in os.environ:
    raise unittest.SkipTest(f"no {RELEASE}/libmadrigal.so.0: make build")

# A wait that ends only what hangs.
WATCHDOG = 60


def environment(**more: str) -> dict[str, str]:
    """Ours, in which `import madrigal` finds this tree's."""
    return {**os.environ, "PYTHONPATH": str(PACKAGE / "src"), **more}


def start(program: str, *arguments: str, **more: Any) -> "subprocess.Popen[str]":
    """Starts a Python program that is a text."""
    return subprocess.Popen([sys.executable, "-c", program, *arguments], env=environment(), stdout=subprocess.PIPE, text=True, **more)


def output(child: "subprocess.Popen[str]") -> str:
    """What a program wrote, when it has ended well."""
    said, _ = child.communicate(timeout=WATCHDOG)
    if child.returncode:
        raise AssertionError(f"exit status {child.returncode}: {said}")
    return said
