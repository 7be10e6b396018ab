"""Compiles the test programs, once for each MPI's binary interface, into target/mpi."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

from bed.hosts import Unable
from bed.mpis import HOME, Mpi

SOURCES = Path(__file__).resolve().parent.parent / "programs"
MPI_SOURCES = ("bed.c", "pairs.c", "groups.c", "windows.c", "figures.c")


def bed(mpi: Mpi) -> str:
    """Path of the test program for an MPI."""
    return _made(f"bed-{mpi.abi}", mpi.compiler, MPI_SOURCES, ("bed.h",))


def refuse() -> str:
    """Path of the wrapper that refuses process_vm_readv(2)."""
    return _made("refuse", "cc", ("refuse.c",))


def hold() -> str:
    """Path of the wrapper that keeps the death of a rank from its launcher for a while."""
    return _made("hold", "cc", ("hold.c",))


def arrays(mpi: Mpi) -> str:
    """Path of the program that uses Global Arrays, for Debian's Open MPI."""
    libraries = ("-lga-openmpi", "-larmci-openmpi", "-lscalapack-openmpi", "-llapack", "-lblas", "-lgfortran", "-lm")
    return _made("arrays", mpi.compiler, ("arrays.c",), (), libraries)


def _made(name: str, compiler: str, sources: tuple[str, ...], headers: tuple[str, ...] = (), libraries: tuple[str, ...] = ()) -> str:
    text = compiler.encode() + b"".join((SOURCES / source).read_bytes() for source in sources + headers)
    out = HOME / "programs" / f"{name}-{hashlib.sha256(text).hexdigest()[:10]}"
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        fresh = out.with_suffix(".new")
        words = [compiler, "-O2", "-Wall", "-Wextra", "-pthread", *(str(SOURCES / source) for source in sources), "-o", str(fresh), *libraries]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            raise Unable(f"{' '.join(words)}: {done.stderr.strip()[-400:]}")
        fresh.rename(out)
    return str(out)
