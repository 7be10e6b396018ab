"""Tests by name, how each is built and run, and what its end means.

    unit PACKAGE FILTER             tests of a package's library
    model PACKAGE FILTER PERCENT    the same under a scheduler (`make models`): PERCENT of the usual runs, where the model knows that
    test PACKAGE FILE FILTER        tests in PACKAGE/tests/FILE
    semantics CHECK MODE            a check of tests/src/bin/semantics, wrapped, with sums compared; MODE: default, first or random
    fuzz SECONDS SEED MODES         random programs, plain against wrapped
    churn MODE END                  connections that begin and end, for some seconds, in C
"""

from __future__ import annotations

import inspect
import os
import re
import shutil
import signal
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .running import Ended, run

# A release without its optimisations: what is built again for each fault is built in seconds.
PROFILE = {"CARGO_PROFILE_DEV_DEBUG": "0", "CARGO_PROFILE_DEV_DEBUG_ASSERTIONS": "false", "CARGO_PROFILE_DEV_OVERFLOW_CHECKS": "false",
           "CARGO_INCREMENTAL": "1", "CARGO_TERM_COLOR": "never"}
# Of the environment of whoever runs this, nothing that changes how connections move.
FOREIGN = ("LD_PRELOAD", "EXPECT_RING", "EXPLORE", "SEED", "RUST_BACKTRACE")
BUILD_SECONDS = 1800
# Seconds after which a test hangs. The checks of semantics end themselves after 60.
SECONDS = {"unit": 300, "model": 600, "test": 600, "semantics": 90, "fuzz": 300, "churn": 180}
# Packages whose tests run whole programs under the library.
WHOLE = ("madrigal-tests", "madrigal-cli")
MODES = {"default": {}, "first": {"MADRIGAL_EAGER": "first"}, "random": {"MADRIGAL_EAGER": "random"}}
# What a test says that fails, the most telling first: a panic, what is compared in it, and names of what failed.
TELLING = (r"panicked at [^\n]*\n([^\n]*(?:\n +(?:left|right):[^\n]*)*)", r"^(seed \d[^\n]*)", r"^test ([^\n]* FAILED)",
           r"(?i)^([^\n]*(?:differs|wrong|timeout|error|deadlock)[^\n]*)")


class Unbuilt(Exception):
    """It cannot be built; the text says why."""


@dataclass(frozen=True)
class Verdict:
    """How a test ended: passed, failed, or skipped; and what it said."""

    how: str
    said: str

    @property
    def failed(self) -> bool:
        return self.how == "failed"


class Bench:
    """Builds and runs tests of one tree."""

    def __init__(self, tree: Path, scratch: Path) -> None:
        self._tree, self._scratch = tree, scratch
        kept = {name: value for name, value in os.environ.items() if name not in FOREIGN and not name.startswith("MADRIGAL")}
        build = scratch / "build" / "debug"
        self._binaries = build
        self._environment = {**kept, **PROFILE, "PATH": kept.get("PATH", "") + os.pathsep + str(Path.home() / ".cargo" / "bin"),
                             "MADRIGAL_SYSWRAP": str(build / "libmadrigal_syswrap.so"), "MADRIGAL": str(build / "madrigal")}

    def run(self, name: str) -> Verdict:
        """Builds what a test needs, and runs it."""
        kind, *words = name.split()
        return getattr(self, "_" + kind)(*words)

    @classmethod
    def makes_sense(cls, name: str) -> bool:
        """Whether a test is of a kind that there is, with as many words as that takes."""
        kind, *words = name.split()
        try:
            inspect.signature(getattr(cls, "_" + kind)).bind(None, *words)
        except (AttributeError, TypeError):
            return False
        return True

    # --- kinds --------------------------------------------------------------------------------------------------------------------

    def _unit(self, package: str, wanted: str) -> Verdict:
        return self._cargo_test("unit", ["-p", package, "--lib"], wanted)

    def _model(self, package: str, wanted: str, percent: str) -> Verdict:
        return self._cargo_test("model", ["-p", package, "--lib", "--features", "shuttle"], wanted, "models", {"EXPLORE": percent})

    def _test(self, package: str, file: str, wanted: str) -> Verdict:
        if package in WHOLE:
            self._build("-p", "madrigal-syswrap", "-p", "madrigal-cli")
        return self._cargo_test("test", ["-p", package, "--test", file], wanted)

    def _semantics(self, check: str, mode: str) -> Verdict:
        self._build("-p", "madrigal-syswrap")
        self._build("-p", "madrigal-tests", "--bin", "semantics")
        library = self._environment["MADRIGAL_SYSWRAP"]
        how = {"LD_PRELOAD": library, "MADRIGAL_CHECK": "1", **MODES[mode], **({} if mode == "random" else {"EXPECT_RING": "1"})}
        with tempfile.TemporaryDirectory(prefix="madrigal-mutants-") as folder:
            environment = {**self._environment, **how, "MADRIGAL_DIR": str(Path(folder) / "shared")}
            ended = run([str(self._binaries / "semantics"), check], Path(folder), environment, SECONDS["semantics"])
        if "no such check" in ended.text:
            raise Unbuilt(f"no check {check}")
        return _judged(ended, "semantics")

    def _fuzz(self, seconds: str, seed: str, modes: str) -> Verdict:
        self._build("-p", "madrigal-syswrap")
        self._build("-p", "madrigal-fuzz-sockets")
        program = [str(self._binaries / "madrigal-fuzz-sockets"), "--seconds", seconds, "--seed", seed, "--modes", modes]
        return _judged(run(program, self._tree, self._environment, SECONDS["fuzz"]), "fuzz")

    def _churn(self, mode: str, end: str) -> Verdict:
        self._build("-p", "madrigal-syswrap", "-p", "madrigal-cli")
        program = ["python3", "tests/churn/run.py", "--languages", "c:c", "--modes", mode, "--ends", end, "--seed", "7",
                   "--madrigal", str(self._binaries / "madrigal")]
        return _judged(run(program, self._tree, self._environment, SECONDS["churn"]), "churn")

    # --- cargo --------------------------------------------------------------------------------------------------------------------

    def _build(self, *what: str, verb: str = "build", place: str = "build") -> None:
        cargo = shutil.which("cargo", path=self._environment["PATH"])
        if not cargo:
            raise Unbuilt("there is no cargo")
        environment = {**self._environment, "CARGO_TARGET_DIR": str(self._scratch / place)}
        ended = run([cargo, verb, "--quiet", *what], self._tree, environment, BUILD_SECONDS)
        if not ended.good:
            raise Unbuilt(_first(r"error.*", ended.text) or f"cargo ends with {ended.status}")

    def _cargo_test(self, kind: str, what: list[str], wanted: str, place: str = "build", more: dict[str, str] | None = None) -> Verdict:
        self._build(*what, "--no-run", verb="test", place=place)
        environment = {**self._environment, **(more or {}), "CARGO_TARGET_DIR": str(self._scratch / place)}
        ended = run(["cargo", "test", *what, "--", wanted, "--nocapture"], self._tree, environment, SECONDS[kind])
        if re.search(r"^running 0 tests", ended.text, re.M):
            raise Unbuilt(f"no test {wanted}")
        return _judged(ended, kind)


def _judged(ended: Ended, kind: str) -> Verdict:
    """What an end means. A test that could not run has said `skipped`."""
    if ended.status is None:
        return Verdict("failed", f"it hangs ({SECONDS[kind]} s)")
    if ended.status == -signal.SIGALRM:
        return Verdict("failed", "it hangs (its watchdog)")
    if not ended.good:
        said = next(filter(None, (_first(pattern, ended.text) for pattern in TELLING)), "")
        return Verdict("failed", said or f"it ends with {ended.status}")
    if skipped := _first(r"^(skipped: .*)", ended.text):
        return Verdict("skipped", skipped)
    return Verdict("passed", "")


def _first(pattern: str, text: str) -> str:
    found = re.search(pattern, text, re.M)
    return " ".join((found[1] if found and found.re.groups else found[0] if found else "").split())[:160]
