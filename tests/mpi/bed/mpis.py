"""The MPIs: where each is, how to compile for it, and how to start ranks over a given provider of libfabric."""

from __future__ import annotations

import os
import shlex
import shutil
from dataclasses import dataclass, field, replace
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
    settings: dict[str, str] = field(default_factory=dict)
    """Keys of ours that `madrigal exec` is to find."""
    exported: dict[str, str] = field(default_factory=dict)
    """Variables of the launcher that it is told to hand to the ranks (Open MPI's `-x`)."""

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
    typed: bool = False
    """Jobs over our provider are started as users do it, by `madrigal exec`, instead of by variables of our own."""

    @property
    def missing(self) -> str:
        """Why it cannot be used here, or nothing."""
        if not shutil.which(self.launcher):
            return f"no {Path(self.launcher).name} of {self.name}: run tests/mpi/setup"
        if not shutil.which(self.compiler):
            return f"no {Path(self.compiler).name} of {self.name}: run tests/mpi/setup"
        return ""

    def environment(self, provider: str) -> dict[str, str]:
        """Variables that make it use a provider, and its ranks' own shared memory stand back."""
        chosen = dict(self.variables)
        if provider in WAYS:
            return chosen | dict(WAYS[provider].variables)
        return chosen | self._chooses(provider)

    def _chooses(self, provider: str) -> dict[str, str]:
        """What `madrigal exec` would set."""
        chosen = {}
        if self.kind == "mpich":
            chosen |= {"MPIR_CVAR_CH4_NETMOD": "ofi", "MPIR_CVAR_NOLOCAL": "1", "FI_PROVIDER": provider}
        elif self.kind == "impi":
            chosen |= {"I_MPI_FABRICS": "ofi", "I_MPI_OFI_PROVIDER": provider}
        if provider == OURS:
            chosen["FI_PROVIDER_PATH"] = str(provider_folder())
            if self.kind == "impi":
                chosen["MPIR_CVAR_CH4_OFI_ENABLE_RMA"] = "0"
            chosen |= _handed_on()
        return chosen

    def command(self, job: Job) -> str:
        """A shell command that starts the job from one of its hosts (or a further one)."""
        build = {"mpich": self._hydra, "impi": self._hydra, "openmpi": self._openmpi}[self.kind]
        if not self._types(job):
            environment = {**self.environment(job.provider), **job.environment, **job.exported}
            words = [*_assigned(environment), *build(job, environment)]
            return shlex.join(words + job.program)
        # Nothing is said of the provider; what the program itself is to see is said behind the launcher.
        variables = dict(self.variables) | _handed_on() | job.settings | job.exported
        words = [*_assigned(variables), str(command_line()), "exec", "--", *build(job, job.exported)]
        return shlex.join(words + (_assigned(job.environment) if job.environment else []) + job.program)

    def _types(self, job: Job) -> bool:
        return self.typed and job.provider == OURS

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
        words = [self.launcher, "--allow-run-as-root", "-n", str(job.ranks)]
        words += ["--host", ",".join(f"{host}:{count}" for host, count in job.blocks)]
        five = self.name != "openmpi4"
        words += ["--prtemca", "plm_ssh_agent", str(job.agent), "--prtemca", "plm_ssh_no_tree_spawn", "1"] if five \
            else ["--mca", "plm_rsh_agent", str(job.agent)]
        words += ["--bind-to", "none", "--map-by", ":OVERSUBSCRIBE"] if five else ["--bind-to", "none", "--oversubscribe"]
        if job.ranks > len(os.sched_getaffinity(0)):
            words += ["--mca", "mpi_yield_when_idle", "1"]
        if job.provider in WAYS:
            words += WAYS[job.provider].words
        else:
            words += self._nothing_else(job.provider) + ([] if self._types(job) else self._over_libfabric(job.provider))
        for name in environment:
            words += ["-x", name]
        return words

    def _over_libfabric(self, provider: str) -> list[str]:
        """Words that choose a provider."""
        return ["--mca", "pml", "cm", "--mca", "mtl", "ofi", "--mca", "opal_common_ofi_provider_include", provider,
                "--mca", "mpi_add_procs_cutoff", "1048576" if provider == OURS else "0"]

    def _nothing_else(self, provider: str) -> list[str]:
        """Words that leave a provider as the only way. One-sided operations: Open MPI 5 has nothing for them over the stock provider but
        its own TCP."""
        osc, btl = ("pt2pt", "self") if self.name == "openmpi4" else ("rdma", "ofi,self" if provider == OURS else "tcp,self")
        return ["--mca", "osc", osc, "--mca", "btl", btl, "--mca", "coll", "^sm,han,adapt,xhc,acoll,ucc,hcoll"]


def _assigned(environment: dict[str, str]) -> list[str]:
    """Words of env(1)."""
    return ["env", *(f"{name}={value}" for name, value in environment.items())]


def _handed_on() -> dict[str, str]:
    """Our own keys, as whoever runs the test bed set them."""
    return {name: value for name, value in os.environ.items() if name.startswith("MADRIGAL_")}


# As built, and where it is in an installation of our own. The provider is alone in its folder, so that libfabric takes nothing else for one.
INSTALLED = (("libmadrigal_ofi.so", "lib/libfabric/libmadrigal-fi.so"), ("madrigal", "bin/madrigal"),
             ("libmadrigal_syswrap.so", "lib/libmadrigal-syswrap.so"))


def _installed(name: str) -> Path:
    """Where something of ours is installed, up to date. A copy: what is loaded tells its name, and stays what it is while something else
    is built."""
    for built, place in INSTALLED:
        source, target = TARGET / "release" / built, HOME / "installed" / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.exists() and not (target.exists() and target.stat().st_mtime_ns == source.stat().st_mtime_ns):
            fresh = target.with_suffix(f".{os.getpid()}")
            shutil.copy2(source, fresh)
            fresh.rename(target)
    return HOME / "installed" / name


def provider_folder() -> Path:
    """The folder that holds our provider."""
    return _installed("lib/libfabric")


def command_line() -> Path:
    """The command `madrigal`."""
    return _installed("bin/madrigal")


def provider_missing(provider: str, typed: bool = False) -> str:
    """Why a provider cannot be used, or nothing."""
    for _, place in INSTALLED[:None if typed else 1] if provider == OURS else ():
        if not _installed(place).exists():
            return f"no {Path(place).name} in {TARGET / 'release'}: run `make build`"
    return ""


def all_mpis(typed: bool = False) -> list[Mpi]:
    """Those of the issue, whether they are here or not."""
    def inside(folder: str, program: str) -> str:
        return str(HOME / folder / "bin" / program)

    def intel(name: str, libraries: Sequence[str] = ()) -> Mpi:
        home = HOME / name
        path = ":".join([str(home / "lib"), *libraries])
        variables = (("I_MPI_ROOT", str(home)), ("LD_LIBRARY_PATH", path), ("I_MPI_PIN", "0"))
        return Mpi(name, "impi", home, inside(name, "mpiexec.hydra"), inside("mpich", "mpicc"), variables, abi="mpich")

    return [replace(mpi, typed=typed) for mpi in (
        Mpi("mpich", "mpich", HOME / "mpich", inside("mpich", "mpiexec"), inside("mpich", "mpicc"), abi="mpich"),
        Mpi("openmpi4", "openmpi", None, "/usr/bin/mpirun.openmpi", "/usr/bin/mpicc.openmpi", abi="openmpi4"),
        Mpi("openmpi5", "openmpi", HOME / "openmpi5", inside("openmpi5", "mpirun"), inside("openmpi5", "mpicc"), abi="openmpi5"),
        intel("impi16"),
        intel("impi19"),
    )]
