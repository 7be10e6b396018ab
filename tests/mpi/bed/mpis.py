"""The MPIs: where each is, how to compile for it, and how to start ranks over a given provider of libfabric."""

from __future__ import annotations

import os
import shlex
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Sequence

ROOT = Path(__file__).resolve().parents[3]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
HOME = TARGET / "mpi"
OURS = "madrigal"


@dataclass(frozen=True)
class Way:
    """How an MPI carries messages by itself, to be compared with: variables and words for its launcher."""

    variables: tuple[tuple[str, str], ...] = ()
    words: tuple[str, ...] = ()


WAYS = {
    "vader": Way(words=("--mca", "pml", "ob1", "--mca", "btl", "vader,self")),
    "btl-tcp": Way(words=("--mca", "pml", "ob1", "--mca", "btl", "tcp,self")),
    "ucx": Way((("MPIR_CVAR_CH4_NETMOD", "ucx"),)),
    "ucx-tcp": Way((("MPIR_CVAR_CH4_NETMOD", "ucx"), ("MPIR_CVAR_NOLOCAL", "1"), ("UCX_TLS", "tcp,self"))),
    "shm": Way((("I_MPI_FABRICS", "shm"),)),
}


@dataclass
class Job:
    """What to start: so many ranks of a program on each of some hosts, over a provider of libfabric or one of `WAYS`."""

    program: list[str]
    blocks: list[tuple[str, int]]
    provider: str
    agent: Path
    machines: Path
    """A file that may be written for the launcher."""
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """How many in all."""
        return sum(count for _, count in self.blocks)


@dataclass(frozen=True)
class Mpi:
    """One of them."""

    name: str
    kind: str
    home: Path | None
    launcher: str
    compiler: str
    variables: tuple[tuple[str, str], ...] = ()
    abi: str = ""

    @property
    def missing(self) -> str:
        """Why it cannot be used here, or nothing."""
        if not shutil.which(self.launcher):
            return f"no {self.launcher}: run tests/mpi/setup"
        if not shutil.which(self.compiler):
            return f"no {self.compiler}: run tests/mpi/setup"
        return ""

    def environment(self, provider: str) -> dict[str, str]:
        """Variables that make it use a provider, and its ranks' own shared memory stand back."""
        chosen = dict(self.variables)
        if provider in WAYS:
            return chosen | dict(WAYS[provider].variables)
        if self.kind == "mpich":
            chosen |= {"MPIR_CVAR_CH4_NETMOD": "ofi", "MPIR_CVAR_NOLOCAL": "1", "FI_PROVIDER": provider}
        elif self.kind == "impi":
            chosen |= {"I_MPI_FABRICS": "ofi", "I_MPI_OFI_PROVIDER": provider}
        if provider == OURS:
            chosen["FI_PROVIDER_PATH"] = str(provider_folder())
            chosen |= {name: value for name, value in os.environ.items() if name.startswith("MADRIGAL_") and "BED" not in name and "CAGE" not in name}
        return chosen

    def command(self, job: Job) -> str:
        """A shell command that starts the job from one of its hosts (or a further one)."""
        environment = {**self.environment(job.provider), **job.environment}
        build = {"mpich": self._hydra, "impi": self._hydra, "openmpi": self._openmpi}[self.kind]
        words = ["env", *(f"{name}={value}" for name, value in environment.items()), *build(job, environment)]
        return shlex.join(words + job.program)

    def _hydra(self, job: Job, environment: dict[str, str]) -> list[str]:
        words = [self.launcher, "-n", str(job.ranks)]
        exec_flag = "-launcher" if self.kind == "mpich" else "-bootstrap"
        if len({host for host, _ in job.blocks}) > 1 or job.blocks[0][0] != "h1":
            job.machines.write_text("".join(f"{host}:{count}\n" for host, count in job.blocks))
            words += ["-machinefile", str(job.machines), exec_flag, "ssh", f"{exec_flag}-exec", str(job.agent)]
        else:
            words += [exec_flag, "fork"]
        return words

    def _openmpi(self, job: Job, environment: dict[str, str]) -> list[str]:
        words = ["OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", self.launcher, "-n", str(job.ranks)]
        words += ["--host", ",".join(f"{host}:{count}" for host, count in job.blocks)]
        five = self.name != "openmpi4"
        words += ["--prtemca", "plm_ssh_agent", str(job.agent), "--prtemca", "plm_ssh_no_tree_spawn", "1"] if five \
            else ["--mca", "plm_rsh_agent", str(job.agent)]
        words += ["--bind-to", "none", "--map-by", ":OVERSUBSCRIBE"] if five else ["--bind-to", "none", "--oversubscribe"]
        if job.ranks > len(os.sched_getaffinity(0)):
            words += ["--mca", "mpi_yield_when_idle", "1"]
        words += WAYS[job.provider].words if job.provider in WAYS else self._over_libfabric(job.provider)
        for name in environment:
            words += ["-x", name]
        return words

    def _over_libfabric(self, provider: str) -> list[str]:
        """Words that leave one provider as the only way. One-sided operations: Open MPI 5 has nothing for them over the stock provider
        but its own TCP."""
        osc, btl = ("pt2pt", "self") if self.name == "openmpi4" else ("rdma", "ofi,self" if provider == OURS else "tcp,self")
        return ["--mca", "pml", "cm", "--mca", "mtl", "ofi", "--mca", "opal_common_ofi_provider_include", provider,
                "--mca", "mpi_add_procs_cutoff", "1048576" if provider == OURS else "0",
                "--mca", "osc", osc, "--mca", "btl", btl, "--mca", "coll", "^sm,han,adapt,xhc,acoll,ucc,hcoll"]


def provider_folder() -> Path:
    """A folder that holds our provider and nothing else that libfabric would take for one."""
    built = TARGET / "release" / "libmadrigal_ofi.so"
    folder = HOME / "provider"
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "libmadrigal-fi.so"
    # A copy: what is loaded tells its name, and stays what it is while something else is built.
    if built.exists() and not (library.exists() and library.stat().st_mtime_ns == built.stat().st_mtime_ns):
        fresh = library.with_suffix(f".{os.getpid()}")
        shutil.copy2(built, fresh)
        fresh.rename(library)
    return folder


def provider_missing(provider: str) -> str:
    """Why a provider cannot be used, or nothing."""
    if provider == OURS and not (provider_folder() / "libmadrigal-fi.so").exists():
        return "no libmadrigal-fi.so in target/release: build personalities/ofi"
    return ""


def all_mpis() -> list[Mpi]:
    """Those of the issue, whether they are here or not."""
    def inside(folder: str, program: str) -> str:
        return str(HOME / folder / "bin" / program)

    def intel(name: str, libraries: Sequence[str] = ()) -> Mpi:
        home = HOME / name
        path = ":".join([str(home / "lib"), *libraries])
        variables = (("I_MPI_ROOT", str(home)), ("LD_LIBRARY_PATH", path), ("I_MPI_PIN", "0"))
        return Mpi(name, "impi", home, inside(name, "mpiexec.hydra"), inside("mpich", "mpicc"), variables, abi="mpich")

    return [
        Mpi("mpich", "mpich", HOME / "mpich", inside("mpich", "mpiexec"), inside("mpich", "mpicc"), abi="mpich"),
        Mpi("openmpi4", "openmpi", None, "/usr/bin/mpirun.openmpi", "/usr/bin/mpicc.openmpi", abi="openmpi4"),
        Mpi("openmpi5", "openmpi", HOME / "openmpi5", inside("openmpi5", "mpirun"), inside("openmpi5", "mpicc"), abi="openmpi5"),
        intel("impi16"),
        intel("impi19"),
    ]
