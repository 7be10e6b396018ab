"""Compiles the small peers that benchmarks need, at bench time, into target/bench/."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import Sequence

from harness.processes import Failed, run

BENCH = Path(__file__).resolve().parent.parent
ROOT = BENCH.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
OUT = TARGET / "bench"


def c_program(name: str) -> str:
    """Path of bench/peers/NAME.c, compiled."""
    source = BENCH / "peers" / f"{name}.c"
    return _made(name, [source], [["cc", "-O2", "-Wall", "-pthread", str(source), "-o", "{out}"]])


def capi_program(name: str) -> str:
    """Path of bench/c/NAME.c, compiled and linked with the library for C of this build."""
    library, header = TARGET / "release" / "libmadrigal.so.0", ROOT / "personalities" / "capi" / "include"
    if not library.exists():
        raise Failed("needs `make build`")
    source = BENCH / "c" / f"{name}.c"
    folder = library.parent.resolve()
    command = ["cc", "-O2", "-Wall", f"-I{header}", str(source), str(folder / library.name), f"-Wl,-rpath,{folder}", "-o", "{out}"]
    return _made(f"capi-{name}", [source, header / "madrigal.h"], [command])


def rust_example(name: str) -> str:
    """Path of crates/madrigal/examples/NAME.rs, built as the release is."""
    run(["cargo", "build", "--quiet", "--release", "-p", "madrigal", "--example", name, "--target-dir", str(TARGET)],
        seconds=1800.0, cwd=ROOT)
    return str(TARGET / "release" / "examples" / name)


def go_program(name: str) -> str:
    """Path of bench/peers/NAME.go as a static binary, compiled."""
    source = BENCH / "peers" / f"{name}.go"
    env = {**os.environ, "CGO_ENABLED": "0", "GO111MODULE": "off", "GOCACHE": str(OUT / "go-cache")}
    return _made(name, [source], [["go", "build", "-o", "{out}", str(source)]], env=env)


def corba_programs() -> tuple[str, str]:
    """Paths of the omniORB server and client of bench/corba, compiled."""
    folder = BENCH / "corba"
    sources = sorted(folder.iterdir())
    work = OUT / "corba-stubs"
    work.mkdir(parents=True, exist_ok=True)
    stubs = ["omniidl", "-bcxx", f"-C{work}", str(folder / "Bench.idl")]

    def program(part: str) -> str:
        compiler = ["g++", "-O2", f"-I{work}", str(folder / f"{part}.cc"), str(work / "BenchSK.cc"), "-o", "{out}",
                    "-lomniORB4", "-lomnithread", "-lpthread"]
        return _made(f"corba-{part}", sources, [stubs, compiler])

    return program("server"), program("client")


def missing(programs: Sequence[str]) -> list[str]:
    """Those of some programs that this machine does not have."""
    return [program for program in programs if not shutil.which(program)]


def _made(name: str, sources: Sequence[Path], steps: Sequence[Sequence[str]], env: dict[str, str] | None = None) -> str:
    """Runs build steps unless the result of these very sources and commands is there."""
    text = b"".join(source.read_bytes() for source in sources) + repr(steps).encode()
    OUT.mkdir(parents=True, exist_ok=True)
    out = OUT / f"{name}-{hashlib.sha256(text).hexdigest()[:10]}"
    if not out.exists():
        absent = missing([step[0] for step in steps])
        if absent:
            raise Failed(f"needs {', '.join(absent)}")
        fresh = out.with_suffix(f".{os.getpid()}")
        for step in steps:
            run([part.format(out=fresh) for part in step], 180, env=env)
        fresh.rename(out)
    return str(out)
