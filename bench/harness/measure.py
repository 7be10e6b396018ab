"""Rows of the table and how a client-server row is measured.

A row has one or more figures. Plain TCP is first tried under each congestion control; the better one is then measured against Madrigal
in the same namespace, a run of one, a run of the other, turn about, with both servers up all the time (a server that is not asked
sleeps). Nothing is compared with a figure of another day: another build takes the place of plain TCP (`Plan.base`).
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Protocol, Sequence

from harness import builds, processes, stats
from harness.namespaces import Namespace
from harness.processes import Child
from harness.report import Traffic


AS_BEFORE = 0.97
"""What a figure may be at worst, as a ratio to another build's."""


@dataclass(frozen=True)
class Figure:
    """One line of the table. `target` and `goal` are ratios, or for `absolute` figures an upper limit on what Madrigal adds."""

    name: str
    unit: str
    target: float
    goal: float | None = None
    lower_is_better: bool = False
    absolute: bool = False
    """The worst single run allowed, as a ratio to the plain median."""
    floor: float | None = None


@dataclass
class Result:
    """What was measured for a figure."""

    figure: Figure
    plain: list[float]
    madrigal: list[float]
    plain_cc: str
    by_ring: bool | None = None
    trials: dict[str, list[float]] = field(default_factory=dict)
    traffic: dict[str, int] = field(default_factory=dict)
    note: str = ""
    others: float = 0.0
    """CPUs that other programs kept busy meanwhile."""

    @property
    def ratio(self) -> float:
        """Of the medians; above 1 is better for Madrigal."""
        return stats.ratio(median(self.plain), median(self.madrigal), self.figure.lower_is_better)

    @property
    def worst(self) -> float:
        """The worst Madrigal run against the median of plain TCP."""
        return min(stats.ratio(median(self.plain), run, self.figure.lower_is_better) for run in self.madrigal)

    @property
    def added(self) -> float:
        """What Madrigal adds, in the figure's unit."""
        return median(self.madrigal) - median(self.plain)

    @property
    def passed(self) -> bool:
        """Whether the target is met."""
        if self.figure.absolute:
            return self.added < self.figure.target
        return self.ratio >= self.figure.target and (self.figure.floor is None or self.worst >= self.figure.floor)


@dataclass(frozen=True)
class Plan:
    """How much to measure, and with what."""

    runs: int
    seconds: float
    trials: int
    wrap: list[str]
    spaces: list[Namespace]
    scratch: Path
    quick: bool = False
    base: list[str] = field(default_factory=list)
    """What goes in front of the programs of the other side: nothing for plain TCP."""
    chosen: dict[str, str] = field(default_factory=dict)
    """The congestion control that was better for a kind of workload: a quick run tries only once for each kind."""


@dataclass(frozen=True)
class Side:
    """One of the two things compared: where it runs and what goes in front of its programs."""

    label: str
    space: Namespace
    folder: Path
    wrap_server: list[str]
    wrap_client: list[str]
    traffic: Traffic = field(default_factory=Traffic)
    memory: dict[str, float] = field(default_factory=dict)

    def server(self, argv: Sequence[str], user: str | None = None, log: str = "server.log") -> Child:
        """Starts a server of this side."""
        return Child([*self.space.enter, *as_user(user), *self.wrap_server, *argv], self.folder / log, cwd=self.folder)

    def client(self, argv: Sequence[str], server: Child, user: str | None = None, seconds: float = 60.0) -> str:
        """Runs a client of this side to its end. The reports of both ends are sampled, of those that are wrapped."""
        watched = [server.pid] if self.wrap_server else []

        def sample(*pids: int, count: bool = True) -> None:
            for pid in pids:
                self.traffic.sample([pid, *processes.descendants(pid)], count)

        sample(*watched, count=False)
        command = [*self.space.enter, *as_user(user), *self.wrap_client, *argv]
        sampler = (lambda client: sample(client, *watched)) if self.wrap_client else None
        try:
            text = processes.run(command, seconds, sampler, cwd=self.folder)
        except processes.Failed as failure:
            raise processes.Failed(f"{self.label}: {failure}") from None
        sample(*watched)
        return text

    def tool(self, argv: Sequence[str], user: str | None = None) -> str:
        """Runs something that only prepares: never wrapped."""
        return processes.run([*self.space.enter, *as_user(user), *argv], cwd=self.folder)


class Workload(Protocol):
    """A server and a client that measures it."""

    needs: Sequence[str]

    def start(self, side: Side) -> Child:
        """Starts the server and waits until it answers."""

    def run(self, side: Side, server: Child, seconds: float) -> list[float]:
        """One run of the client for about `seconds`: a value for each figure of the row."""


class Row(Protocol):
    """One or more figures measured together."""

    figures: Sequence[Figure]

    def measure(self, plan: Plan) -> list[Result]:
        """Measures all figures. Raises `Failed` when a program cannot be run."""


@dataclass(frozen=True)
class Pair:
    """A row of a server and a client."""

    workload: Workload
    figures: Sequence[Figure]
    wrap_server: bool = True
    busy: bool = False
    setting: str = ""
    """A variable, and what it is to be, whose cost is measured: the other side is Madrigal without it."""

    def measure(self, plan: Plan) -> list[Result]:
        """Tries the congestion controls, then measures turn about."""
        absent = builds.missing(self.workload.needs)
        if absent:
            raise processes.Failed(f"needs {', '.join(absent)}")
        with ExitStack() as stack:
            for _ in range(2 if self.busy else 0):
                stack.callback(busy_loop(plan.scratch).stop)
            # Who gets which processor beside two endless loops is drawn anew every few ms: a short run is a lottery.
            return self._measure(replace(plan, seconds=plan.seconds * 3) if self.busy else plan, stack)

    def _measure(self, plan: Plan, stack: ExitStack) -> list[Result]:
        tried = {}
        for space in plan.spaces:
            side = self._side(plan, f"plain-{space.congestion}", space, wrapped=False)
            server = self.workload.start(side)
            stack.callback(server.stop)
            tried[space.congestion] = (side, server)
        trials = {name: [[] for _ in self.figures] for name in tried}
        kind = type(self.workload).__name__
        if len(tried) > 1 and not (plan.quick and kind in plan.chosen):
            for _ in range(plan.trials):
                for name, (side, server) in tried.items():
                    _append(trials[name], self.workload.run(side, server, plan.seconds))
            plan.chosen[kind] = self._best(trials)
        best = plan.chosen[kind] if len(tried) > 1 else next(iter(tried))
        plain, plain_server = tried.pop(best)
        for _, server in tried.values():
            server.stop()
        ours = self._side(plan, "madrigal", plain.space, wrapped=True)
        our_server = self.workload.start(ours)
        stack.callback(our_server.stop)
        sides = [("plain", plain, plain_server), ("madrigal", ours, our_server)]
        # Neither is measured cold.
        for _, side, server in sides:
            self.workload.run(side, server, plan.seconds / (4 if plan.quick else 2))
        ours.traffic.clear()
        values = {"plain": [[] for _ in self.figures], "madrigal": [[] for _ in self.figures]}
        for turn in range(plan.runs):
            for name, side, server in sides if turn % 2 == 0 else reversed(sides):
                _append(values[name], self.workload.run(side, server, plan.seconds))
                print(".", end="", file=sys.stderr, flush=True)
        figures = [replace(figure, target=AS_BEFORE, goal=None, floor=None) if plan.base else figure for figure in self.figures]
        return [self._result(i, figure, values, best, trials, ours.traffic) for i, figure in enumerate(figures)]

    def _result(self, i: int, figure: Figure, values: dict, best: str, trials: dict, traffic: Traffic) -> Result:
        seen = {"ring_bytes": traffic.ring, "tcp_bytes": traffic.tcp, "bells": traffic.bells, "missed_bells": traffic.missed_bells}
        return Result(figure, values["plain"][i], values["madrigal"][i], best,
                      by_ring=traffic.by_ring if traffic.reports else None,
                      trials={name: runs[i] for name, runs in trials.items() if runs[i]}, traffic=seen)

    def _side(self, plan: Plan, label: str, space: Namespace, wrapped: bool) -> Side:
        folder = plan.scratch / f"{len(list(plan.scratch.iterdir()))}-{label}"
        folder.mkdir(mode=0o755)
        wrap = plan.wrap if wrapped else plan.base
        if self.setting:
            # Against another build both have it.
            wrap = ["env", self.setting, *wrap] if wrapped or plan.base else plan.wrap
        return Side(label, space, folder, wrap if self.wrap_server else [], wrap)

    def _best(self, trials: dict[str, list[list[float]]]) -> str:
        """The congestion control with the better medians (geometric mean over the figures)."""
        def merit(name: str) -> float:
            product = 1.0
            for figure, runs in zip(self.figures, trials[name]):
                product *= 1 / median(runs) if figure.lower_is_better else median(runs)
            return product
        return max(trials, key=merit)


def busy_loop(folder: Path) -> Child:
    """A process that never sleeps."""
    return Child([sys.executable, "-c", "while 1: pass"], folder / "busy.log")


def as_user(user: str | None) -> list[str]:
    """The head of a command that runs as another user."""
    return ["setpriv", "--reuid", user, "--regid", _group_of(user), "--clear-groups", "--"] if user else []


def _group_of(user: str) -> str:
    import pwd
    return str(pwd.getpwnam(user).pw_gid)


def _append(lists: Sequence[list[float]], values: Sequence[float]) -> None:
    for target, value in zip(lists, values, strict=True):
        target.append(value)
