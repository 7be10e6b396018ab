"""Puts what cargo builds into the package: libmadrigal.so.0, the command, and the libraries that the command preloads or names.

All else is in pyproject.toml. The wheel has no code of CPython's, so one serves every version of it; its tag names the C library of
the machine that built it, which is the oldest it runs on.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parents[2]
RELEASE = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
NATIVE = ("libmadrigal.so.0", "libmadrigal-syswrap.so", "libmadrigal-fi.so", "madrigal")


class BuildNative(build_py):
    """Builds, if nobody has, and copies."""

    def run(self) -> None:
        super().run()
        if missing := [name for name in NATIVE if not (RELEASE / name).exists()]:
            print(f"no {', '.join(missing)} in {RELEASE}: make build")
            subprocess.run(["make", "-C", str(ROOT), "build"], check=True)
        if self.editable_mode:
            return
        folder = Path(self.build_lib) / "madrigal" / "native"
        folder.mkdir(parents=True, exist_ok=True)
        for name in NATIVE:
            shutil.copy(RELEASE / name, folder / name)
            subprocess.run(["strip", "--strip-unneeded", str(folder / name)], check=False)


class Wheel(bdist_wheel):
    """A wheel for any Python 3 on this kind of machine."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self) -> tuple[str, str, str]:
        library, version = platform.libc_ver()
        kind = f"manylinux_{version.replace('.', '_')}" if library == "glibc" else "linux"
        return "py3", "none", f"{kind}_{platform.machine()}"


class Native(Distribution):
    """Says that there is native code, so that it is not installed among what is the same on every machine."""

    def has_ext_modules(self) -> bool:
        return True


def version() -> str:
    """The workspace's."""
    found = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)
    if found is None:
        raise SystemExit(f"no version in {ROOT / 'Cargo.toml'}")
    return found[1]


setup(version=version(), cmdclass={"build_py": BuildNative, "bdist_wheel": Wheel}, distclass=Native)
