"""Runs one combination."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bed.combinations import Combination
from bed.languages import HEAP, command
from bed.memory import MIB, History, look

START = 30
"""Seconds for a program to begin."""
REST = 60
"""Seconds a client may take beyond its time: a receive gives up after 20."""
MEMORY = 75
"""Seconds after which memory must have stopped growing: the last third begins behind the first minute, nearly."""
LINES = 200
"""Complaints of one side that are kept."""


@dataclass
class Outcome:
    """What came of it."""

    connections: int = 0
    bytes: int = 0
    wrong: int = 0
    timeouts: int = 0
    errors: int = 0
    ends: list[str] = field(default_factory=list)
    """Programs that ended as they should not, and memory that grows."""
    said: list[str] = field(default_factory=list)
    memory: dict[str, dict[str, int]] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    """Files in Madrigal's directory after both had ended."""
    seconds: float = 0

    @property
    def good(self) -> bool:
        """Whether nothing is wrong with it."""
        return not (self.wrong or self.timeouts or self.errors or self.ends)

    @property
    def only_grows(self) -> bool:
        """Whether nothing is wrong with it but its memory."""
        grown = all(" grows: " in end for end in self.ends)
        return bool(self.ends) and grown and not (self.wrong or self.timeouts or self.errors)

    def hear(self, side: str, line: str) -> None:
        """Takes in a line of a program."""
        if found := re.match(r"wrong (\d+) ", line):
            self.wrong += int(found[1])
        elif line.startswith("timeout "):
            self.timeouts += 1
        elif line.startswith("error "):
            self.errors += 1
        elif line.startswith(("progress ", "done ", "ready", "madrigal: MADRIGAL_")):
            return
        if len(self.said) < LINES:
            self.said.append(f"{side}: {line}")

    def text(self) -> str:
        """Numbers of it, in one line."""
        told = ", ".join(f"{count} {what}" for count, what in ((self.wrong, "wrong bytes"), (self.timeouts, "time-outs"), (self.errors, "errors")) if count)
        bad = "; ".join([*([told] if told else []), *self.ends])
        memory = " ".join(f"{side} {self._memory(side)}" for side in ("server", "client") if side in self.memory)
        return f"{self.connections:>6} conns {self.bytes / 1e6:>7.0f} MB  {'ok' if self.good else 'FAILED'}  {memory}" + (f"  {bad}" if bad else "")

    def _memory(self, side: str) -> str:
        m = self.memory[side]
        return f"{m['own_peak'] // MIB}/{m['own_final'] // MIB}+{m['rings_peak'] // MIB}/{m['rings_final'] // MIB}"

    def as_json(self) -> dict[str, object]:
        """For other programs."""
        return {**asdict(self), "good": self.good}


class Side:
    """A running program and what it says."""

    def __init__(self, name: str, words: list[str], environment: dict[str, str], outcome: Outcome, folder: Path) -> None:
        self.name, self.outcome = name, outcome
        self.connections = self.bytes = 0
        self.ready = threading.Event()
        self.history = History()
        self.popen = subprocess.Popen(words, env=environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                      start_new_session=True)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        for raw in self.popen.stdout:
            line = raw.decode(errors="replace").rstrip()
            if found := re.match(r"(?:progress|done) (\d+) (\d+)$", line):
                self.connections, self.bytes = int(found[1]), int(found[2])
            if line == "ready" or self.bytes:
                self.ready.set()
            self.outcome.hear(self.name, line)
        self.ready.set()

    def look(self, at: float) -> None:
        """Takes a sample of its memory."""
        if sample := look(self.popen.pid, at):
            self.history.samples.append(sample)

    def kill(self) -> None:
        """Ends it and its group, and hears the rest of what it said."""
        try:
            os.killpg(self.popen.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.popen.wait()
        self._listener.join(5)

    def tell_end(self, code: int | None, where: str = "") -> None:
        """Notes an end that is none of ours."""
        if code is None:
            self.outcome.ends.append(f"{self.name} did not end{where}")
        elif code != 0:
            how = signal.Signals(-code).name if code < 0 else f"status {code}"
            self.outcome.ends.append(f"{self.name} ended by {how}{where}")


class Runner:
    """Runs combinations one after the other, each in a folder of its own."""

    def __init__(self, madrigal: Path, seconds: int, seed: int, logs: Path) -> None:
        self.madrigal, self.seconds, self.seed, self.logs = madrigal, seconds, seed, logs
        self._count = 0

    def run(self, what: Combination) -> Outcome:
        """Runs one; for longer than a minute where its memory grows: what comes in the first one fills caches and arenas."""
        outcome = self._run(what, self.seconds)
        if outcome.only_grows and self.seconds < MEMORY:
            outcome = self._run(what, MEMORY)
        return outcome

    def _run(self, what: Combination, seconds: int) -> Outcome:
        self._count += 1
        outcome = Outcome()
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="churn-") as name:
            folder = Path(name)
            folder.chmod(0o700)
            port = 7000 + self._count % 20000
            server = Side("server", self._words(what, "server", ["server", str(port), what.beside]), self._environment(what, folder), outcome, folder)
            try:
                server.ready.wait(START)
                if server.popen.poll() is not None or not server.ready.is_set():
                    server.tell_end(server.popen.poll(), " before it was ready")
                else:
                    self._clients(what, seconds, server, port, outcome, folder)
            finally:
                server.kill()
            self._conclude(what, server, outcome, folder)
        outcome.seconds = time.monotonic() - began
        return outcome

    def _clients(self, what: Combination, seconds: int, server: Side, port: int, outcome: Outcome, folder: Path) -> None:
        lot = random.Random(f"{self.seed} {what}")
        deadline = time.monotonic() + seconds
        while True:
            long = seconds if what.end != "kill" else 3600
            words = ["client", *map(str, (port, what.threads, what.requests, what.size, what.end, long, what.beside, lot.randrange(1 << 32)))]
            client = Side("client", self._words(what, "client", words), self._environment(what, folder), outcome, folder)
            try:
                if what.end == "kill":
                    self._kill(client, server, lot)
                else:
                    self._await(client, server, seconds)
            finally:
                client.kill()
            outcome.connections += client.connections
            outcome.bytes += client.bytes
            outcome.memory["client"] = _numbers(client.history)
            if what.end != "kill" and (growing := client.history.growing(HEAP[what.client])):
                outcome.ends.append(f"client grows: {growing}")
            if what.end != "kill" or time.monotonic() > deadline or outcome.ends or server.popen.poll() is not None:
                return

    def _kill(self, client: Side, server: Side, lot: random.Random) -> None:
        """Ends it in the middle of what it does."""
        client.ready.wait(START)
        if client.popen.poll() is not None or not client.ready.is_set():
            client.tell_end(client.popen.poll(), " before it was killed")
            return
        time.sleep(lot.random() * 0.6)
        self._look(client, server)
        if client.popen.poll() is not None:
            client.tell_end(client.popen.poll(), " before it was killed")

    def _await(self, client: Side, server: Side, seconds: int) -> None:
        deadline = time.monotonic() + seconds + REST
        while client.popen.poll() is None:
            if time.monotonic() > deadline:
                client.tell_end(None)
                self._stacks(client, server)
                return
            self._look(client, server)
            time.sleep(0.25)
        client.tell_end(client.popen.poll())

    def _look(self, *sides: Side) -> None:
        now = time.monotonic()
        for side in sides:
            side.look(now)

    def _conclude(self, what: Combination, server: Side, outcome: Outcome, folder: Path) -> None:
        outcome.memory["server"] = _numbers(server.history)
        if growing := server.history.growing(HEAP[what.server]):
            outcome.ends.append(f"server grows: {growing}")
        shared = folder / "shared"
        outcome.left = sorted(path.name for path in shared.rglob("*")) if shared.exists() else []
        if not outcome.good:
            self.logs.mkdir(parents=True, exist_ok=True)
            text = f"{what.options()}\n{outcome.text()}\n" + "\n".join(outcome.said) + "\n"
            (self.logs / f"{self._count:04}.log").write_text(text)

    def _words(self, what: Combination, side: str, words: list[str]) -> list[str]:
        wrapped = what.mode != "plain" and what.sides in ("both", side)
        language = what.server if side == "server" else what.client
        return [*([str(self.madrigal), "exec", "--"] if wrapped else []), *command(language), *words]

    def _environment(self, what: Combination, folder: Path) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MADRIGAL_") and name != "LD_PRELOAD"}
        when = {"eager": {"MADRIGAL_EAGER": "first"}, "random": {"MADRIGAL_EAGER": f"random:{self.seed}"}}.get(what.mode, {})
        return {**kept, "MADRIGAL_DIR": str(folder / "shared"), **({"MADRIGAL_CHECK": "1", **when} if what.mode != "plain" else {})}

    def _stacks(self, *sides: Side) -> None:
        """Where they stand, for the log: by gdb(1) where there is one."""
        gdb = shutil.which("gdb")
        for side in sides:
            told = "no gdb here"
            if gdb:
                words = [gdb, "-batch", "-nx", "-iex", "set debuginfod enabled off", "-p", str(side.popen.pid), "-ex", "thread apply all backtrace 16"]
                try:
                    told = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=60, stdin=subprocess.DEVNULL).stdout
                except subprocess.TimeoutExpired:
                    told = "gdb did not answer"
            self.logs.mkdir(parents=True, exist_ok=True)
            (self.logs / f"{self._count:04}.{side.name}.stacks").write_text(told)


def _numbers(history: History) -> dict[str, int]:
    return {f"{what}_{when}": getattr(history, when)(what) for what in ("own", "shared", "rings", "mappings", "descriptors") for when in ("peak", "final")}
