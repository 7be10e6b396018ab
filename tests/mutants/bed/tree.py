"""The copy of the tree in which faults are made, and what one of them changes there."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Mutant:
    """A fault: what stands in a file, and what is put there instead."""

    name: str
    file: str
    text: str
    instead: str
    # Why it is one: what a program would see.
    why: str
    # Tests to be run, in this order: see `trials`.
    trials: tuple[str, ...]

    def stale(self, root: Path) -> str | None:
        """Why the fault cannot be made any more, if so."""
        path = root / self.file
        if not path.is_file():
            return f"stale: there is no {self.file}"
        found = path.read_text().count(self.text)
        return None if found == 1 else f"stale: {self.file} has its text {found} times, not once"


class Busy(Exception):
    """Another run is at work in the same place."""


class Tree:
    """A copy of all that git knows, or would know, kept between runs so that builds are short."""

    def __init__(self, scratch: Path, source: Path = ROOT) -> None:
        self.root, self._source = scratch / "tree", source
        scratch.mkdir(parents=True, exist_ok=True)
        # Held until this process ends.
        lock = os.open(scratch / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as why:
            os.close(lock)
            raise Busy(f"another run is at work in {scratch}") from why

    def update(self) -> None:
        """Makes it what the source is. Files that are the same stay untouched: cargo goes by their times."""
        wanted = {path for path in self._listed() if (self._source / path).is_file()}
        for path in wanted:
            _copy(self._source / path, self.root / path)
        for path in [path for path in self.root.rglob("*") if path.is_file() or path.is_symlink()]:
            if str(path.relative_to(self.root)) not in wanted:
                path.unlink()
        # An empty folder of a crate would be a broken one. The innermost come first.
        for folder in sorted((path for path in self.root.rglob("*") if path.is_dir()), reverse=True):
            if not any(folder.iterdir()):
                folder.rmdir()

    def _listed(self) -> list[str]:
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=self._source, check=True, capture_output=True, text=True).stdout
        return [name for name in listed.split("\0") if name]

    def make(self, mutant: Mutant) -> None:
        """Makes the fault. Raises ValueError where it is stale."""
        if why := mutant.stale(self.root):
            raise ValueError(why)
        path = self.root / mutant.file
        path.write_text(path.read_text().replace(mutant.text, mutant.instead))

    def mend(self, mutant: Mutant) -> None:
        """Undoes it."""
        source = self._source / mutant.file
        if source.is_file():
            (self.root / mutant.file).write_bytes(source.read_bytes())


def _copy(source: Path, copy: Path) -> None:
    if copy.is_file() and copy.read_bytes() == source.read_bytes() and copy.stat().st_mode == source.stat().st_mode:
        return
    copy.parent.mkdir(parents=True, exist_ok=True)
    # Not with the source's time: a file that goes back to what it was is a change to cargo.
    shutil.copy(source, copy)
