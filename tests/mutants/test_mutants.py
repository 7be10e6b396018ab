"""Tests of the parts that could hide a fault. Run: python3 -m unittest discover tests/mutants"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent))

import run
from bed import trials
from bed.running import Ended
from bed.running import run as run_program
from bed.tree import Busy, Mutant, Tree
from bed.trials import Unbuilt, Verdict
from table import MUTANTS

ONE = Mutant("one", "a/file.rs", "is right", "is wrong", "what is right is wrong", ("unit a b", "semantics c default"))
PASSED, FAILED, SKIPPED = Verdict("passed", ""), Verdict("failed", "wrong bytes"), Verdict("skipped", "skipped: no root")


class Bench:
    """Tests that end as they are told to; sees what stands in the file meanwhile."""

    def __init__(self, file: Path, **verdicts: Verdict | Exception) -> None:
        self._file, self._verdicts = file, verdicts
        self.seen: list[str] = []

    def run(self, name: str) -> Verdict:
        self.seen.append(self._file.read_text())
        verdict = self._verdicts[name.split()[0]]
        if isinstance(verdict, Exception):
            raise verdict
        return verdict


class WithTree(unittest.TestCase):
    def setUp(self) -> None:
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.source, self.scratch = folder / "source", folder / "scratch"
        (self.source / "a").mkdir(parents=True)
        (self.source / "a/file.rs").write_text("all is right here\n")
        subprocess.run(["git", "init", "--quiet", str(self.source)], check=True)
        self.enterContext(mock.patch("sys.stderr"))
        self.tree = Tree(self.scratch, self.source)
        self.tree.update()
        self.file = self.tree.root / "a/file.rs"

    def tried(self, all_tests: bool = False, **verdicts: Verdict | Exception) -> run.Result:
        self.bench = Bench(self.file, **verdicts)
        result = run._try(self.tree, self.bench, ONE, all_tests)
        self.assertEqual(self.file.read_text(), "all is right here\n", "the fault was undone")
        return result


class Making(WithTree):
    def test_a_fault_is_there_while_its_tests_run_and_never_in_the_source(self) -> None:
        self.tried(unit=PASSED, semantics=PASSED)
        self.assertEqual(self.bench.seen, ["all is wrong here\n"] * 2)
        self.assertEqual((self.source / "a/file.rs").read_text(), "all is right here\n")

    def test_what_is_not_found_exactly_once_is_stale(self) -> None:
        for text in ("nothing of it\n", "is right, is right\n"):
            (self.source / "a/file.rs").write_text(text)
            self.tree.update()
            self.assertIn("stale", ONE.stale(self.tree.root))
            result = run._try(self.tree, Bench(self.file), ONE, False)
            self.assertEqual(result.how, "broken")
        (self.source / "a/file.rs").unlink()
        self.tree.update()
        self.assertIn("stale", ONE.stale(self.tree.root))
        self.assertFalse(self.file.parent.exists(), "nor an empty folder")

    def test_what_is_the_same_keeps_its_time(self) -> None:
        before = self.file.stat().st_mtime_ns
        self.tree.update()
        self.assertEqual(self.file.stat().st_mtime_ns, before)

    def test_one_at_a_time(self) -> None:
        with self.assertRaises(Busy):
            Tree(self.scratch, self.source)


class Judging(WithTree):
    def test_a_test_that_fails_catches_it_and_ends_the_search(self) -> None:
        result = self.tried(unit=FAILED, semantics=FAILED)
        self.assertEqual((result.how, result.by), ("caught", {"unit a b": "wrong bytes"}))
        self.assertEqual(len(self.tried(all_tests=True, unit=FAILED, semantics=FAILED).by), 2)

    def test_what_no_test_sees_survives(self) -> None:
        self.assertEqual(self.tried(unit=PASSED, semantics=PASSED).how, "survived")
        self.assertEqual(self.tried(unit=SKIPPED, semantics=PASSED).how, "survived")
        self.assertEqual(self.tried(unit=SKIPPED, semantics=SKIPPED).how, "skipped")

    def test_what_does_not_build_is_not_caught(self) -> None:
        self.assertEqual(self.tried(unit=Unbuilt("no such type"), semantics=FAILED).how, "broken")

    def test_a_test_that_fails_anyway_catches_nothing(self) -> None:
        for verdict, how in ((PASSED, "caught"), (FAILED, "broken"), (SKIPPED, "broken"), (Unbuilt("no"), "broken")):
            result = self.tried(unit=FAILED)
            run._confirm(Bench(self.file, unit=verdict), [result])
            self.assertEqual(result.how, how)

    def test_the_last_line_and_the_exit_status(self) -> None:
        for hows, status, last in ((["caught"] * 2, 0, "2 of 2 caught"), (["caught", "survived"], 1, "1 of 2 caught"),
                                   (["caught", "skipped"], 1, "1 of 2 caught"), (["broken", "survived"], 2, "0 of 2 caught")):
            with mock.patch("builtins.print") as said:
                self.assertEqual(run._conclude([run.Result(ONE, how) for how in hows]), status)
            self.assertEqual(said.call_args.args[0], last)

    def test_what_an_end_means(self) -> None:
        cases = ((0, "test result: ok. 1 passed", "passed"), (0, "skipped: no root", "skipped"), (101, "", "failed"),
                 (None, "", "failed"), (-14, "", "failed"))
        for status, text, how in cases:
            self.assertEqual(trials._judged(Ended(status, text), "unit").how, how)


class Running(unittest.TestCase):
    def test_what_hangs_ends_with_all_it_started(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            ended = run_program(["sh", "-c", "sleep 60 & echo $!; wait"], Path(folder), {"PATH": "/usr/bin:/bin"}, 1)
            self.assertIsNone(ended.status)
            stat = Path(f"/proc/{ended.text.strip()}/stat")
            # Killed, it goes as soon as it is run again.
            end = time.monotonic() + 20
            while self.runs(stat) and time.monotonic() < end:
                time.sleep(0.01)
            self.assertFalse(self.runs(stat))

    @staticmethod
    def runs(stat: Path) -> bool:
        """Whether a process is there, and is more than its exit status."""
        try:
            return stat.read_text().rpartition(")")[2].split()[0] not in "ZX"
        except OSError:
            return False

    def test_status_and_both_outputs(self) -> None:
        ended = run_program(["sh", "-c", "echo out; echo err >&2; exit 3"], Path("/"), {"PATH": "/usr/bin:/bin"}, 20)
        self.assertEqual((ended.status, ended.text), (3, "out\nerr\n"))


class Table(unittest.TestCase):
    def test_every_fault_has_a_name_a_change_and_tests_of_known_kinds(self) -> None:
        self.assertEqual(len({mutant.name for mutant in MUTANTS}), len(MUTANTS))
        for mutant in MUTANTS:
            self.assertNotEqual(mutant.text, mutant.instead)
            for trial in mutant.trials:
                self.assertTrue(trials.Bench.makes_sense(trial), trial)

    def test_none_is_stale(self) -> None:
        self.assertEqual([why for mutant in MUTANTS if (why := mutant.stale(run.ROOT))], [])


if __name__ == "__main__":
    unittest.main()
