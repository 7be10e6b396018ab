"""What the stock `tcp` provider does: small text files, a line for each check, to compare with and to record anew."""

from __future__ import annotations

from pathlib import Path
from typing import Iterable

FOLDER = Path(__file__).resolve().parent.parent / "baseline"


def read(name: str) -> dict[str, str]:
    """Key to result (`pass`, `FAILED` or `skipped`); empty where nothing was recorded."""
    path = FOLDER / f"{name}.txt"
    if not path.exists():
        return {}
    found = {}
    for line in path.read_text().splitlines():
        if line and not line.startswith("#"):
            result, _, key = line.partition(" ")
            found[key.strip()] = result
    return found


def record(name: str, results: Iterable[tuple[str, str]], about: str) -> None:
    """Writes or completes a file."""
    known = read(name) | {key: result for key, result in results if result != "skipped"}
    FOLDER.mkdir(exist_ok=True)
    lines = [f"# {about}", *(f"{result:<7} {key}" for key, result in sorted(known.items()))]
    (FOLDER / f"{name}.txt").write_text("\n".join(lines) + "\n")
