"""The same program in several languages: how it is built and how it is started."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SOURCES = Path(__file__).resolve().parents[1] / "programs"
BUILT = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target") / "churn"


class Missing(Exception):
    """A language that is not to be had here; the text says what is missing."""


def command(language: str) -> list[str]:
    """Builds the program if it is older than its source; the words to start it with."""
    BUILT.mkdir(parents=True, exist_ok=True)
    return LANGUAGES[language]()


def _c() -> list[str]:
    source, made = SOURCES / "churn.c", BUILT / "churn"
    if _older(made, source):
        _run(_program("cc"), "-O2", "-pthread", "-o", made, source)
    return [str(made)]


def _python() -> list[str]:
    return [sys.executable, str(SOURCES / "churn.py")]


def _java() -> list[str]:
    source = SOURCES / "Churn.java"
    if _older(BUILT / "Churn.class", source):
        _run(_program("javac"), "-d", BUILT, source)
    # A heap that is small and there from the beginning, so that what grows beside it is seen.
    return [_program("java"), "-Xms96m", "-Xmx96m", "-XX:+AlwaysPreTouch", "-XX:+UseSerialGC", "-cp", str(BUILT), "Churn"]


def _tokio() -> list[str]:
    folder, made = SOURCES / "tokio", BUILT / "tokio" / "release" / "churn-tokio"
    if _older(made, folder / "src" / "main.rs"):
        _run(_program("cargo"), "build", "--quiet", "--release", "--locked", "--target-dir", BUILT / "tokio", "--manifest-path", folder / "Cargo.toml")
    return [str(made)]


def _node() -> list[str]:
    return [_program("node"), str(SOURCES / "churn.js")]


def _erlang() -> list[str]:
    source = SOURCES / "churn.erl"
    if _older(BUILT / "churn.beam", source):
        _run(_program("erlc"), "-o", BUILT, source)
    return [_program("erl"), "-noshell", "-pa", str(BUILT), "-run", "churn", "main"]


LANGUAGES = {"c": _c, "python": _python, "java": _java, "tokio": _tokio, "node": _node, "erlang": _erlang}
HEAP = {"c": 8, "tokio": 16, "python": 24, "java": 48, "node": 64, "erlang": 48}
"""Mebibytes that a program's own memory may still grow by after its first seconds, as its language has it."""
FORKERS = ("c", "python", "tokio")
"""Those that can fork(2) without a program in the child; in the others `fork` is not tried."""


def _older(made: Path, source: Path) -> bool:
    return not made.exists() or made.stat().st_mtime < source.stat().st_mtime


def _program(name: str) -> str:
    if found := shutil.which(name):
        return found
    raise Missing(f"needs {name}")


def _run(*words: str | Path) -> None:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        lines = (done.stderr.strip() or "?").splitlines()
        raise Missing(f"{Path(words[0]).name}: {lines[-1][:200]}")
