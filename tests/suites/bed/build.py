"""Builds of C programs from their sources, below the home of the suites."""

from __future__ import annotations

import shutil
from pathlib import Path

from bed.home import HOME, once, program, run, source

JOBS = "-j2"


def cmake(name: str, like: str, target: str, *options: str) -> Path:
    """The build folder of a source package, with one target made."""
    program("cmake", "cmake")
    program("cc", "gcc")
    folder, build = source(name, like), HOME / "build" / name

    def make() -> None:
        shutil.rmtree(build, ignore_errors=True)
        run("cmake", "-S", folder, "-B", build, "-DCMAKE_BUILD_TYPE=RelWithDebInfo", *options)
        run("cmake", "--build", build, JOBS, "--target", target)

    once(HOME / "build", name, make)
    return build
