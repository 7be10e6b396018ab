"""Compiles the test programs, once for each MPI's binary interface, into target/mpi. What a program needs and is not here makes it
`Unable`; a program that does not compile where all is there is a failure."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path
from typing import Sequence

from bed.hosts import Unable
from bed.mpis import HOME, Mpi

SOURCES = Path(__file__).resolve().parent.parent / "programs"
# Headers beyond an MPI's, with the packages that have them.
TOGETHER_NEEDS = (("/usr/include/omniORB4/CORBA.h", "libomniorb4-dev"), ("/usr/include/stdsoap2.h", "libgsoap-dev"))
ARRAYS_NEEDS = (("/usr/include/ga.h", "libglobalarrays-dev"),)
MPI_SOURCES = ("bed.c", "pairs.c", "groups.c", "windows.c", "figures.c", "ends.c")


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
    _require(ARRAYS_NEEDS)
    libraries = ("-lga-openmpi", "-larmci-openmpi", "-lscalapack-openmpi", "-llapack", "-lblas", "-lgfortran", "-lm")
    return _made("arrays", mpi.compiler, ("arrays.c",), (), libraries)


def together() -> str:
    """Path of the program that uses MPI, CORBA and SOAP, for Debian's Open MPI."""
    _require(TOGETHER_NEEDS)
    folder = SOURCES / "together"
    sources = sorted(folder.iterdir())
    out = HOME / "programs" / f"together-{_digest(sources)}"
    if not out.exists():
        work = out.with_suffix(".work")
        work.mkdir(parents=True, exist_ok=True)
        _run("omniidl", "-bcxx", f"-C{work}", str(folder / "Parts.idl"))
        _run("soapcpp2", "-L", "-d", str(work), str(folder / "parts.h"))
        made = [str(work / name) for name in ("PartsSK.cc", "soapC.cpp", "soapClient.cpp", "soapServer.cpp")]
        libraries = ("-lomniORB4", "-lomnithread", "-lgsoap++")
        _run("mpicxx.openmpi", "-O2", "-w", "-pthread", f"-I{work}", str(folder / "together.cc"), *made, "-o", str(work / "program"), *libraries)
        (work / "program").rename(out)
        shutil.rmtree(work)
    return str(out)


def _made(name: str, compiler: str, sources: tuple[str, ...], headers: tuple[str, ...] = (), libraries: tuple[str, ...] = ()) -> str:
    out = HOME / "programs" / f"{name}-{_digest([SOURCES / source for source in sources + headers], compiler)}"
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        fresh = out.with_suffix(".new")
        _run(compiler, "-O2", "-Wall", "-Wextra", "-pthread", *(str(SOURCES / source) for source in sources), "-o", str(fresh), *libraries)
        fresh.rename(out)
    return str(out)


def _digest(sources: Sequence[Path], compiler: str = "") -> str:
    return hashlib.sha256(compiler.encode() + b"".join(source.read_bytes() for source in sources)).hexdigest()[:10]


def _run(*words: str) -> None:
    if not shutil.which(words[0]):
        raise Unable(f"{words[0]} is not installed")
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {(done.stderr or done.stdout).strip()[-400:]}")


def _require(headers: Sequence[tuple[str, str]]) -> None:
    for header, package in headers:
        if not Path(header).exists():
            raise Unable(f"no {package}: run tests/mpi/setup")
