"""Test programs of crates, built by cargo from what crates.io has of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from bed import parse as parsers
from bed.home import HOME, crate, once, program, run
from bed.results import Ended, Results, Unit


def build(name: str, version: str, features: str, tests: tuple[str, ...]) -> None:
    """Builds test programs of a crate; which file each one is, is kept beside them."""
    once(HOME / "cargo", f"{name}-{version}", lambda: _build(name, version, features, tests))


def _build(name: str, version: str, features: str, tests: tuple[str, ...]) -> None:
    folder = crate(name, version)
    # A folder below a workspace would be taken for a part of it.
    manifest = folder / "Cargo.toml"
    if "[workspace]" not in manifest.read_text():
        manifest.write_text(manifest.read_text() + "\n[workspace]\n")
    chosen = [word for test in tests for word in (("--lib",) if test == "lib" else ("--test", test))]
    told = run(program("cargo"), "test", "--no-run", "--message-format=json", *(["--features", features] if features else []), *chosen, folder=folder,
               seconds=3600, environment={"CARGO_TARGET_DIR": str(HOME / "cargo" / "target")})
    found = {}
    for line in told.splitlines():
        message = json.loads(line) if line.startswith("{") else {}
        if message.get("executable") and message.get("profile", {}).get("test"):
            found[message["target"]["name"] if message["target"]["kind"] == ["test"] else "lib"] = message["executable"]
    (HOME / "cargo" / f"{name}-{version}.json").write_text(json.dumps(found))


def units(name: str, version: str, seconds: float = 300) -> list[Unit]:
    """A program each, its tests one after the other, so that one that does not end is known."""
    found = json.loads((HOME / "cargo" / f"{name}-{version}.json").read_text())
    folder = HOME / "crates" / f"{name}-{version}"
    return [Unit(f"{name}/{test}", (path, "--test-threads=1"), folder, {"CARGO_MANIFEST_DIR": str(folder)}, seconds) for test, path in sorted(found.items())]


def parse(unit: Unit, ended: Ended) -> Results:
    """As Rust's tests print."""
    return parsers.libtest(unit, ended)


def only(unit: Unit, cases: list[str]) -> Unit | None:
    """They take names of tests."""
    names = [case.removeprefix(f"{unit.name} ") for case in cases if not case.endswith("(its end)")]
    return replace(unit, words=(unit.words[0], *names, "--exact", "--test-threads=1")) if names else None


def programs(folder: Path, seconds: float = 300) -> list[Unit]:
    """Test programs that somebody built and left in one folder."""
    return [Unit(f"{folder.name}/{path.name}", (str(path), "--test-threads=1"), seconds=seconds) for path in sorted(folder.iterdir())
            if path.is_file() and path.stat().st_mode & 0o100]
