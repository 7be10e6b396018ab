"""The command `madrigal`, as a wheel brings it."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    """Becomes the command of this package."""
    program = Path(__file__).parent / "native" / "madrigal"
    try:
        os.execv(program, [str(program), *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"madrigal: cannot execute {program}: {error.strerror}")
