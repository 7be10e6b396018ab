"""A check: one test program under one MPI in one scene over one provider, and what is to be expected of it."""

from __future__ import annotations

import re
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Iterator

from bed import programs
from bed.hosts import AGENT, Unable, ip
from bed.mpis import HOME, OURS, Job, Mpi, command_line
from bed.scenes import Scene, World

# Test and arguments; the number of ranks is the scene's unless it is given.
TESTS: dict[str, tuple[list[str], int]] = {
    "ring": (["ring"], 0), "ring8": (["ring", "100000"], 8), "exchange": (["exchange"], 0), "storm": (["storm", "600"], 0),
    "mixed": (["mixed", "12"], 0), "probe": (["probe", "8"], 0), "cancel": (["cancel"], 0), "truncate": (["truncate"], 0),
    "self": (["self"], 0), "threads": (["threads"], 0), "colls": (["colls", "2"], 0), "comms": (["comms"], 0),
    "allreduce": (["allreduce", "8", "300"], 0), "allreduce8": (["allreduce", "65536", "30"], 8), "win": (["win"], 0),
    "fence": (["fence", "30"], 0), "pingpong": (["pingpong", "5"], 2), "bandwidth": (["bandwidth", "100"], 2), "rate": (["rate", "100"], 2),
    "idle": (["idle", "3"], 2), "late": (["late", "18"], 0), "kill": (["kill", "8"], 0), "kill-large": (["kill", "4000000"], 0),
    "kill-fabric": (["kill", "8"], 0), "no-driver": (["ring", "3"], 0), "why": (["why"], 0), "jobs": (["jobs"], 2), "sockets": (["sockets"], 0),
    "early": (["early"], 0), "cut": (["cut"], 0), "flood": (["flood", "400000", "15"], 2), "exports": (["exports", "BED_WORD", "told"], 0),
    "expired": (["expired"], 1),
}
HARD = ("ring", "mixed", "colls")
ENDS = ("early", "cut", "flood", "exports", "expired")
METHODS = {"kill-fabric": "fabric:tcp", "no-driver": "shm"}
"""Tests whose messages go by these drivers alone: over libfabric's own `tcp`, below ours; and where none reaches the other host."""


@dataclass(frozen=True)
class Work:
    """What the test program is told to do, by how many ranks: 0, as many as the scene has."""

    words: tuple[str, ...]
    ranks: int = 0


TWO_JOBS = ("jobs", "expired")
APART = ("no-driver", "cut")
"""Tests that need ranks on different hosts."""
LIMIT_S = 60.0
LIMITS_S = {"cut": 90.0}
BLOCKED_S = 20.0
IDLE_PERCENT = 1.0
GONE_S = 2.0
UNREACHABLE_S = 15.0
HOLD_S = 4.0
# Who never had a way to a rank is sure only after the time in which one is looked for.
HOLD_EARLY_S = 25.0
EARLY_S = 20.0
# How often a check is tried whose launcher loses what was said, or in which something came late: others run beside it, so that a time may be
# exceeded now and then, but not every time.
ATTEMPTS = 3
LATE = re.compile(r"(learnt of it|told) after [0-9.]+ s")


@dataclass(frozen=True)
class Outcome:
    """What came of a check."""

    scene: str
    mpi: str
    test: str
    result: str
    reason: str
    seconds: float
    figures: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """How baselines name it."""
        return f"{self.scene} {self.mpi} {self.test}"

    def line(self) -> str:
        """One line of the table."""
        return f"{self.scene:<13} {self.mpi:<9} {self.test:<11} {self.result:<8} {self.seconds:6.1f} s  {self.reason}".rstrip()


def tests_of(scene: Scene) -> list[str]:
    """The tests that run in a scene unless some are named."""
    if scene.blocked:
        return ["ring"]
    if scene.hard:
        return list(HARD)
    # Which network libfabric's own provider takes, where there are several, is not ours to say.
    plain = scene.name in ("one", "two", "three")
    return [test for test in TESTS if test not in (*METHODS, *ENDS) or plain and (test not in APART or len(scene.blocks) > 1)]


def run(world: World, scene: Scene, mpi: Mpi, test: str, provider: str, work: Work | None = None) -> Outcome:
    """One check, doing other work than usual if that is given. Afterwards nothing of it runs any more."""
    began = time.monotonic()

    def outcome(result: str, reason: str = "", figures: tuple[str, ...] = ()) -> Outcome:
        return Outcome(scene.name, mpi.name, test, result, reason, time.monotonic() - began, figures)

    if mpi.missing:
        return outcome("skipped", mpi.missing)
    if why := dict(scene.cannot).get(mpi.name):
        return outcome("skipped", why)
    if test in ("why", "sockets") and provider != OURS:
        return outcome("skipped", "of our provider only")
    if test in METHODS and (provider != OURS or not mpi.typed):
        return outcome("skipped", "of our provider under `madrigal exec` only")
    if test == "kill-fabric" and mpi.name == "impi16":
        return outcome("skipped", "this MPI loads no other provider besides ours")
    if test in ("early", "cut", "flood") and provider != OURS:
        return outcome("skipped", "of our provider only")
    if test in TWO_JOBS and mpi.kind == "openmpi":
        return outcome("skipped", "jobs of this MPI meet by a server of names only")
    if test == "expired" and mpi.kind == "impi":
        return outcome("skipped", "this MPI knows no time-out of MPI_Comm_connect")
    if test == "exports" and mpi.kind != "openmpi":
        return outcome("skipped", "only Open MPI's launcher has -x")
    try:
        job = _job(world, scene, mpi, provider, work or Work(tuple(TESTS[test][0]), TESTS[test][1]))
        job.settings = {"MADRIGAL_METHODS": METHODS[test]} if test in METHODS else {}
        job.exported = {"BED_WORD": "told"} if test == "exports" else {}
    except Unable as why:
        return outcome("skipped", str(why))
    log = world.folder / "log"
    head = world.hosts[scene.head or scene.blocks[0][0]]
    command = _two_jobs(world, scene, mpi, job) if test in TWO_JOBS else mpi.command(job)
    for attempt in range(ATTEMPTS):
        start = time.monotonic()
        log.write_text("")
        with _cutting(world, log, scene.blocks[-1][0] if test == "cut" else ""):
            code = head.run(command, BLOCKED_S if scene.blocked or scene.hard else LIMITS_S.get(test, LIMIT_S), log)
        text = log.read_text(errors="replace")
        reason = _judge(scene, mpi, test, provider, job, code, text, time.monotonic() - start)
        lost = test.startswith("kill") and _lost(mpi, code, text)
        if attempt + 1 == ATTEMPTS or not (reason and (lost or LATE.search(reason))):
            break
        world.reset()
    if not reason and code is not None:
        reason = _left(world, test)
    if reason and not reason.startswith("skipped"):
        if code is None:
            text += _stacks(world)
        _keep(text, f"{provider}.{scene.name}.{mpi.name}.{test}.log")
    world.reset()
    figures = tuple(re.findall(r"^figure (.*)$", text, re.MULTILINE))
    if reason.startswith("skipped"):
        return outcome("skipped", reason[9:], figures)
    return outcome("FAILED" if reason else "pass", reason or "; ".join(figures[-1:]), figures)


@contextmanager
def _cutting(world: World, log: Path, host: str) -> Iterator[None]:
    """Takes a host, where one is named, off the network once a rank says so; at the end it is back."""
    over = threading.Event()
    card = f"{world.lan.name}-{host}"

    def cut() -> None:
        while not over.wait(0.05):
            if "figure cut me" in log.read_text(errors="replace"):
                ip("link", "set", card, "down")
                return

    watch = threading.Thread(target=cut)
    if host:
        watch.start()
    try:
        yield
    finally:
        over.set()
        if host:
            watch.join()
            ip("link", "set", card, "up")
            time.sleep(1)


def _job(world: World, scene: Scene, mpi: Mpi, provider: str, work: Work) -> Job:
    wanted = work.ranks
    program = [programs.bed(mpi), *work.words, *([str(command_line())] if work.words[0] == "why" else [])]
    if scene.refuse:
        program.insert(0, programs.refuse())
    if hold := {"kill": HOLD_S, "early": HOLD_EARLY_S}.get(work.words[0]):
        program[:0] = [programs.hold(), f"{hold:.0f}"]
    blocks = list(scene.blocks)
    if wanted and wanted != scene.ranks:
        share = max(wanted // len(blocks), 1)
        blocks = [(host, share) for host, _ in blocks][:wanted]
        blocks[-1] = (blocks[-1][0], wanted - share * (len(blocks) - 1))
    return Job(program, blocks, provider, AGENT, world.folder / "machines")


def _two_jobs(world: World, scene: Scene, mpi: Mpi, job: Job) -> str:
    """Two jobs of their own, by one command: on the first host and on the last, that meet by what one of them leaves in a file."""
    commands = []
    for role, host in (("open", scene.blocks[0][0]), ("join", scene.blocks[-1][0])):
        one = replace(job, program=[*job.program, role, str(world.folder / "port")], blocks=[(host, job.ranks)],
                      machines=world.folder / f"machines-{role}")
        # Without it Intel's launcher gives jobs of their own no place to meet.
        commands.append(f"I_MPI_SPAWN=on {mpi.command(one)}")
    (world.folder / "port").unlink(missing_ok=True)
    return f"{commands[0]} & first=$!; {commands[1]}; code=$?; wait $first || code=$?; exit $code"


def _judge(scene: Scene, mpi: Mpi, test: str, provider: str, job: Job, code: int | None, text: str, seconds: float) -> str:
    """What is wrong, or nothing."""
    if code is None:
        return f"not done after {seconds:.0f} s: {_told(text)}"
    if scene.blocked:
        if code == 0:
            return "no error"
        return _judge_blocked(text) if provider == OURS else ""
    if test == "no-driver":
        told = re.search(r"cannot reach node .*shm: no such node on this host", text)
        return "" if code != 0 and told else f"ended with {code} without the reason: {_told(text)}"
    if test in ("early", "cut"):
        return _judge_lost(test, code, text, seconds)
    if test.startswith("kill"):
        return _judge_kill(mpi, job, code, text, seconds)
    if skipped := re.search(r"^skipped \S+ (.*)$", text, re.MULTILINE):
        return f"skipped: {skipped[1]}"
    if code != 0 or not re.search(rf"^ok \S+ {job.ranks}$", text, re.MULTILINE):
        return f"ended with {code}: {_told(text)}"
    if provider == OURS:
        if not re.search(r"^loaded .*libmadrigal-fi", text, re.MULTILINE):
            return "our provider was not loaded"
        if test == "idle" and (used := re.search(r"figure idle percent ([0-9.]+)", text)) and float(used[1]) >= IDLE_PERCENT:
            return f"an idle rank uses {used[1]} % of a processor"
        if test == "why":
            return _judge_why(scene, text)
        if test == "flood" and not re.search(r"^madrigal: node \S+ on \S+ .* for [1-9]\d+ s: .*wait there for receives", text, re.MULTILINE):
            return "nothing tells what waits"
        if test in TWO_JOBS and len(re.findall(rf"^ok {test} ", text, re.MULTILINE)) != 2:
            return "one of the two jobs did not say that it went well"
    return ""


def _judge_lost(test: str, code: int, text: str, seconds: float) -> str:
    """An end, in time, and a line that names the peer with its host, and what showed that it is gone."""
    # Open MPI 5's launcher ends with 0 where it has lost one of its daemons.
    if code == 0 and test != "cut":
        return "no error"
    if re.search(r"^figure early code 0 ", text, re.MULTILINE):
        return "rank 0 received from a dead rank"
    there, shown = (r"\S+ on h2", "is down|no answer from its host") if test == "cut" else (r"\S+ on h\d", "Connection refused|its process ended|closed")
    if not re.search(rf"^madrigal: node \S+ on \S+ (?:cannot reach|has lost|has had no answer from) node {there}.*: .*(?:{shown})", text, re.MULTILINE):
        return f"no line names the peer: {_told(text)}"
    told = re.search(r"^figure early code \d+ seconds ([0-9.]+)", text, re.MULTILINE)
    # A rank that ends the job by itself does not always get that far.
    needed = float(told[1]) if told else seconds
    return f"rank 0 learnt of it after {needed:.1f} s" if test == "early" and needed > EARLY_S else ""


def _judge_blocked(text: str) -> str:
    """A line that names both hosts, each address and what it gave, once for each rank that tells it, and no later than it may be."""
    told = [line for line in text.splitlines() if "cannot reach" in line]
    if not any("h1" in line and "h2" in line and re.search(r"10\.77\.0\.\d+:\d+: [^;]*\bE[A-Z]+\b", line) for line in told):
        return f"the error does not name the pair and what was tried: {_told(text)}"
    if len(set(told)) < len(told):
        return f"told twice: {told[0][:180]}"
    late = [seconds for seconds in re.findall(r"in ([0-9.]+) s it did not", text) if float(seconds) > UNREACHABLE_S]
    return f"told after {late[0]} s" if late else ""


def _judge_why(scene: Scene, text: str) -> str:
    """The way to peers on the same host, and whether long messages are copied at once; where that is refused, what refuses it."""
    if scene.blocks[0][1] > 1:
        single, refused = "inbox, single copy" in text, re.search(r"not by single copy: process_vm_readv: .*not permitted", text)
        if single == scene.refuse or bool(refused) != scene.refuse:
            return f"single copies are {'refused' if scene.refuse else 'allowed'}, but this is not told"
    if len(scene.blocks) > 1 and not re.search(r"long messages by tcp: .*\n", text):
        return "nothing is told of peers on other hosts"
    return ""


def _judge_kill(mpi: Mpi, job: Job, code: int, text: str, seconds: float) -> str:
    """Every survivor learnt of it by an error, in time; or one of them ended the job for it, as MPICH's and Intel's MPI do whatever they
    are asked for, before a launcher could know: `hold` deceives theirs, to which a rank has no connection but an inherited one. Such a
    launcher ends the others at once, and does not always pass on what they, or the one who asked for it, had said."""
    killed = re.search(r"^figure killed at ([0-9.]+)", text, re.MULTILINE)
    if killed:
        seconds = time.monotonic() - float(killed[1])
    told = re.findall(r"figure kill rank (\d+) code (\d+) seconds ([0-9.]+)", text)
    if any(wrong == "0" for _, wrong, _ in told):
        return f"a rank received from a dead one: {_told(text)}"
    late = [f"rank {rank} learnt of it after {seconds} s" for rank, _, seconds in told if float(seconds) > GONE_S]
    if late:
        return ", ".join(late)
    ended = code != 0 and seconds <= HOLD_S and "FAILED" not in text and (killed or "Abort(" in text)
    if mpi.kind in ("mpich", "impi") and len(told) < job.ranks - 1 and not ended:
        return f"{len(told)} of {job.ranks - 1} ranks learnt of it: {_told(text)}"
    return "" if code != 0 or told else f"ended with {code}"


def _lost(mpi: Mpi, code: int | None, text: str) -> bool:
    """Whether the launcher has ended the job and lost all that was said: such a run shows nothing, neither good nor bad."""
    return mpi.kind in ("mpich", "impi") and code not in (None, 0) and not re.search(r"^figure |Abort\(|FAILED", text, re.MULTILINE)


def _left(world: World, test: str) -> str:
    """What is left of it, after a while. Where a launcher has lost a host it kills all ranks at once, and the table in which they would
    have met stays for the next program that is wrapped to remove."""
    deadline = time.monotonic() + 20

    def remains() -> list[str]:
        return [what for what in world.remains() if test != "cut" or "/offers-" not in what]

    while (left := remains()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return f"left: {', '.join(left)[:200]}" if left else ""


def _told(text: str) -> str:
    """The line that says most, shortened."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not re.fullmatch(r"[-=#* ]+", line.strip())]
    for mark in ("FAILED", "adrigal", "Assert", "rror", "ailed", "signal"):
        for line in lines:
            if mark in line and not line.startswith("loaded"):
                return line[:180]
    return lines[-1][:180] if lines else "no output"


def _stacks(world: World) -> str:
    """Where what still runs stands."""
    return "".join(f"\n=== {host.name}\n{host.stacks()}" for host in world.hosts.values())


def _keep(text: str, name: str) -> None:
    folder = HOME / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
