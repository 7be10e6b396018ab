"""Suites that other people wrote, each as a list of cases: a name, and a way to run it. None of their code is kept here."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Iterator

from bed import programs
from bed.hosts import AGENT, Unable
from bed.mpis import HOME, OURS, Job, Mpi, provider_folder
from bed.scenes import World

Verdict = tuple[str, str]
"""`pass`, `FAILED` or `skipped`, and why."""


@dataclass(frozen=True)
class Place:
    """Where a suite runs: the hosts, the ranks on each, the MPI and the provider."""

    world: World
    mpi: Mpi
    provider: str
    blocks: tuple[str, ...]
    built: Path | None
    """The folder of a suite that somebody built."""
    patience: float = 1
    """How many times longer than on a quiet machine things may take."""
    memory: float = 4
    """Tests that want more gigabytes are left out."""

    def spread(self, ranks: int) -> list[tuple[str, int]]:
        """So many ranks in turn over the hosts."""
        counts = {host: 0 for host in self.blocks}
        for rank in range(ranks):
            counts[self.blocks[rank % len(self.blocks)]] += 1
        return [(host, count) for host, count in counts.items() if count]

    def start(self, program: list[str], ranks: int, seconds: float, environment: dict[str, str] | None = None, folder: Path | None = None,
              name: str = "") -> tuple[int | None, str]:
        """Runs ranks of a program to their end; the code, None if they did not end, and what they printed."""
        job = Job(program, self.spread(ranks), self.provider, AGENT, self.world.folder / "machines", environment or {})
        command = self.mpi.command(job)
        log = self.world.folder / "log"
        code = self.world.hosts[self.blocks[0]].run(f"cd {shlex.quote(str(folder))} && {command}" if folder else command,
                                                    seconds * self.patience, log)
        text = log.read_text(errors="replace")
        if name and code != 0:
            kept = HOME / "logs"
            kept.mkdir(parents=True, exist_ok=True)
            (kept / f"{self.provider}.{self.mpi.name}.{re.sub(r'[^A-Za-z0-9_.-]+', '_', name)}.log").write_text(text)
        self.world.reset()
        return code, text


Case = tuple[str, Callable[[], Verdict]]


def mpi4py(place: Place, wanted: str) -> Iterator[Case]:
    """mpi4py's own tests, a file at a time: each failing test of a file is named."""
    python, tests = HOME / "mpi4py" / "bin" / "python", HOME / "mpi4py-source" / "test"
    if not tests.exists() or not python.exists():
        raise Unable("no mpi4py: run tests/mpi/setup")
    library = {"openmpi4": "/usr/lib/x86_64-linux-gnu/libmpi.so.40", "openmpi5": str(HOME / "openmpi5" / "lib" / "libmpi.so.40")}.get(
        place.mpi.name, str(HOME / place.mpi.name / "lib" / "libmpi.so.12"))

    def one(name: str) -> Verdict:
        code, text = place.start([str(python), str(tests / "main.py"), "-v", "-i", rf"{name}\.py$"], 2, 240,
                                 {"MPI4PY_LIBMPI": library, "OMPI_MCA_rmaps_base_oversubscribe": "1"}, name=f"mpi4py-{name}")
        if code is None:
            begun = re.findall(r"^(test\S* \(\S+\))", text, re.MULTILINE)
            return "FAILED", f"not done; last: {begun[-1] if begun else '-'}"
        failed = sorted(set(re.findall(r"^(?:FAIL|ERROR): \S+ \((\S+?)\)", text, re.MULTILINE)))
        ran = re.findall(r"^(?:\[\d+@\S+\] )?Ran (\d+) tests?", text, re.MULTILINE)
        if code == 0 and not failed and ran:
            return ("skipped", "no tests") if ran[0] == "0" else ("pass", f"{ran[0]} tests")
        if failed and ran:
            return "FAILED", f"{ran[0]} tests, of which failed: {', '.join(failed)}"
        return "FAILED", text.strip().splitlines()[-1][:120] if text.strip() else f"ended with {code}"

    for path in sorted(tests.glob("test_*.py")):
        if path.stem not in ("test_spawn", "test_dynproc") and re.search(wanted, path.stem):
            yield path.stem, lambda name=path.stem: one(name)


def mpich(place: Place, wanted: str) -> Iterator[Case]:
    """MPICH's test/mpi, built somewhere for this MPI: what the lists in its folders name."""
    if place.built is None:
        raise Unable("say by --built where MPICH's test/mpi was built")
    for part in ("pt2pt", "coll", "rma", "attr", "comm", "group", "topo"):
        for line in sorted(set((place.built / part / "testlist").read_text().splitlines())):
            words = line.split("#")[0].split()
            options = dict(word.split("=", 1) for word in words[2:] if "=" in word and not word.startswith("arg="))
            arguments = [word[4:] for word in words[2:] if word.startswith("arg=")]
            environment = dict(word[4:].split("=", 1) for word in words[2:] if word.startswith("env="))
            if len(words) < 2 or not re.search(wanted, f"{part}/{words[0]}") or "xfail" in options or options.get("mpiversion", "0") > "4.9":
                continue
            name = " ".join([f"{part}/{words[0]}", words[1], *arguments, *(f"{key}={value}" for key, value in environment.items())])
            limit = float(options.get("timeLimit", 120))
            if float(options.get("mem", 0)) > place.memory:
                yield name, lambda memory=options["mem"]: ("skipped", f"wants {memory} GB of memory")
                continue
            yield name, lambda part=part, words=words, arguments=arguments, environment=environment, name=name, limit=limit: _mpich_case(
                place, part, words[0], int(words[1]), arguments, environment, name, limit)


def _mpich_case(place: Place, part: str, program: str, ranks: int, arguments: list[str], environment: dict[str, str], name: str,
                limit: float) -> Verdict:
    path = place.built / part / program
    if not path.exists():
        return "skipped", "not built"
    # It may have been built for the same MPI in another place.
    library = {"LD_LIBRARY_PATH": str(place.mpi.home / "lib")} if place.mpi.home else {}
    code, text = place.start([str(path), *arguments], ranks, limit, library | environment, path.parent, f"mpich-{name}")
    if code == 0 and re.search(r"^\s*No [Ee]rrors\s*$", text, re.MULTILINE):
        return "pass", ""
    lines = [line for line in text.splitlines() if line.strip()]
    return "FAILED", f"not done after {limit * place.patience:.0f} s" if code is None else f"{code}: {lines[0][:120] if lines else ''}"


def npb(place: Place, wanted: str) -> Iterator[Case]:
    """The NAS benchmarks, built somewhere for this MPI."""
    if place.built is None:
        raise Unable("say by --built where the NAS benchmarks were built (the folder with bin/*.S.x)")

    def one(path: Path) -> Verdict:
        code, text = place.start([str(path)], 4, 240, name=f"npb-{path.name}")
        good = code == 0 and re.search(r"Verification\s*=\s*SUCCESSFUL", text)
        return ("pass", "") if good else ("FAILED", "not done" if code is None else f"{code}: no successful verification")

    for path in sorted((place.built / "bin").glob("*.S.x")):
        if re.search(wanted, path.name):
            yield path.name, lambda path=path: one(path)


def arrays(place: Place, wanted: str) -> Iterator[Case]:
    """Global Arrays, with a program of ours."""
    if place.mpi.name != "openmpi4":
        raise Unable("Debian's Global Arrays are for Debian's Open MPI and MPICH")
    program = programs.arrays(place.mpi)

    def one(ranks: int, order: int) -> Verdict:
        code, text = place.start([program, str(order)], ranks, 120, name=f"arrays-{ranks}")
        return ("pass", "") if code == 0 and "ok arrays" in text else ("FAILED", "not done" if code is None else text.strip()[-150:])

    for ranks, order in ((2, 100), (4, 300), (8, 300)):
        name = f"{ranks} ranks, order {order}"
        if re.search(wanted, name):
            yield name, lambda ranks=ranks, order=order: one(ranks, order)


FABTESTS_LEFT_OUT = "-e msg,dgram,^fi_msg$,^fi_msg g,fi_msg_(epoll|sockets|pingpong|bw)"
"""What needs connected or unreliable endpoints, as expressions of its script."""


def fabtests(place: Place, wanted: str) -> Iterator[Case]:
    """libfabric's own: its script kills by name, which the cage contains. All cases come from one run of it."""
    script = place.built and place.built / "bin" / "runfabtests.sh"
    if not script or not script.exists():
        raise Unable("say by --built where fabtests were installed (the folder with bin/runfabtests.sh)")
    # In libfabric 1 `tcp` has no endpoints of the kind that needs no connections, so another provider goes on top of it.
    old = not (place.built / "bin" / "fi_flood").exists()
    name = "tcp;ofi_rxm" if old and place.provider == "tcp" else place.provider
    words = [str(script), "-vvv", "-t", wanted or "unit,functional,short", "-p", str(place.built / "bin"),
             "-e", FABTESTS_LEFT_OUT, "-T", str(round(60 * place.patience)), name]
    environment = {"PATH": f"{place.built}/bin:{os.environ['PATH']}", "FI_LOG_LEVEL": "warn"}
    if place.provider == OURS:
        environment["FI_PROVIDER_PATH"] = str(provider_folder())
    if (place.built / "lib").exists():
        environment["LD_LIBRARY_PATH"] = f"{place.built}/lib"
    log = place.world.folder / "log"
    command = shlex.join(["env", *(f"{key}={value}" for key, value in environment.items()), *words])
    code = place.world.hosts[place.blocks[0]].run(command, 1800 * place.patience, log)
    text = log.read_text(errors="replace")
    (HOME / "logs").mkdir(parents=True, exist_ok=True)
    (HOME / "logs" / f"{place.provider}.fabtests.log").write_text(text)
    if code is None:
        yield "all", lambda: ("FAILED", "the whole was not done")
    results = re.findall(r"^- name:\s*(.*)\n(?:.*\n)*?\s*result:\s*(\w+)", text, re.MULTILINE) or \
        re.findall(r"^(fi_.*?):?\s{2,}(Pass|Fail|Notrun|Excluded)", text, re.MULTILINE)
    for test, result in results:
        verdict = {"Pass": "pass", "Fail": "FAILED"}.get(result, "skipped")
        yield re.sub(r' -p ".*"$', "", test.strip()), lambda verdict=verdict, result=result: (verdict, "" if verdict == "pass" else result)


ALL: dict[str, Callable[[Place, str], Iterator[Case]]] = {
    "mpi4py": mpi4py, "mpich": mpich, "npb": npb, "arrays": arrays, "fabtests": fabtests}
