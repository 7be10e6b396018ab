"""What the stock `tcp` provider does: small text files, a line for each check, to compare with and to record anew."""

from __future__ import annotations

from pathlib import Path
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


def worse(stock: dict[str, str], results: dict[str, str]) -> list[str]:
    """What failed and does not with the stock provider, or is not known to. A case that fails with both may fail in other tests, told as
    `CASE: TEST`."""
    failed = [key for key, result in results.items() if result == "FAILED"]
    fails_too = {key for key, result in stock.items() if result == "FAILED"}
    told = {key.split(": ")[0] for key in fails_too if ": " in key}

    def is_worse(key: str) -> bool:
        case, _, test = key.partition(": ")
        return key not in fails_too and (case in told if test else True)

    return [key for key in failed if is_worse(key)]


def record(name: str, results: dict[str, str], about: str) -> None:
    """Writes or completes a file. Of a case that was run anew, tests that failed before are forgotten."""
    kept = {key: result for key, result in read(name).items() if key.split(": ")[0] not in results}
    known = kept | {key: result for key, result in results.items() if result != "skipped"}
    FOLDER.mkdir(exist_ok=True)
    lines = [f"# {about}", *(f"{result:<7} {key}" for key, result in sorted(known.items()))]
    (FOLDER / f"{name}.txt").write_text("\n".join(lines) + "\n")
