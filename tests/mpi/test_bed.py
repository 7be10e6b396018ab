"""Tests of the parts of the test bed that could hide a failure. Run: python3 -m unittest discover tests/mpi"""

from __future__ import annotations

import sys
import tempfile
import time
import unittest
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import stress
from bed import baseline, checks
from bed.mpis import OURS, Job, all_mpis
from bed.scenes import SCENES

SCENE = {scene.name: scene for scene in SCENES}
MPI = {mpi.name: mpi for mpi in all_mpis()}
JOB = Job(["x"], [("h1", 4)], OURS, Path("agent"), Path("machines"))
GOOD = "loaded /libmadrigal-fi.so\nok ring 4\n"


def judge(text: str, test: str = "ring", code: int | None = 0, provider: str = OURS, scene: str = "one", mpi: str = "mpich") -> str:
    return checks._judge(SCENE[scene], MPI[mpi], test, provider, JOB, code, text, 1.0)


class Judging(unittest.TestCase):
    def test_a_good_run_passes(self) -> None:
        self.assertEqual(judge(GOOD), "")

    def test_what_is_no_pass(self) -> None:
        self.assertIn("not done", judge(GOOD, code=None))
        self.assertIn("ended with 1", judge(GOOD, code=1))
        self.assertIn("ended with 0", judge("loaded /libmadrigal-fi.so\nok ring 3\n"))
        self.assertIn("not loaded", judge("loaded /libtcp-fi.so\nok ring 4\n"))
        self.assertEqual(judge("loaded -\nok ring 4\n", provider="tcp"), "")

    def test_an_idle_rank_must_sleep(self) -> None:
        self.assertIn("99.9 %", judge("figure idle percent 99.9\n" + GOOD, "idle"))
        self.assertEqual(judge("figure idle percent 0.2\n" + GOOD, "idle"), "")

    def test_two_jobs_must_both_say_that_it_went_well(self) -> None:
        one = "loaded /libmadrigal-fi.so\nok jobs 4\n"
        self.assertEqual(judge(2 * one, "jobs"), "")
        self.assertIn("one of the two", judge(one, "jobs"))

    def test_survivors_must_learn_of_a_death_in_time(self) -> None:
        told = "".join(f"figure kill rank {rank} code 15 seconds {{}}\n" for rank in (0, 2, 3))
        self.assertEqual(judge(told.format(0.1, 0.1, 0.2), "kill", 9), "")
        self.assertIn("after 3.5", judge(told.format(0.1, 3.5, 0.2), "kill", 9))
        self.assertIn("0 of 3", judge("", "kill", 9))
        # Who learnt of it ended the job, and the launcher lost what was said about it.
        killed = f"figure killed at {time.monotonic():.3f}\n"
        self.assertEqual(judge(killed, "kill", 143), "")
        self.assertIn("0 of 3", judge(killed, "kill", 0))
        self.assertIn("0 of 3", judge(f"figure killed at {time.monotonic() - 4.5:.3f}\n", "kill", 143))
        self.assertIn("0 of 3", judge("no such program", "kill", 143))
        self.assertIn("from a dead one", judge("figure kill rank 0 code 0 seconds 0.1\n", "kill", 9))

    def test_where_nothing_passes_an_error_names_the_pair(self) -> None:
        self.assertEqual(judge("no error", code=0, scene="blocked"), "no error")
        self.assertIn("does not name", judge("some error", code=1, scene="blocked"))
        line = "madrigal: node 1 on h1 cannot reach node 2 on h2: 10.77.0.3:4000: no answer (ETIMEDOUT), 6 attempts; and in {} s it did not connect to us\n"
        good = line.format("12.0")
        self.assertEqual(judge(good, code=1, scene="blocked"), "")
        self.assertIn("does not name", judge(good.replace(" on h2", ""), code=1, scene="blocked"))
        self.assertIn("does not name", judge(good.replace("(ETIMEDOUT)", ""), code=1, scene="blocked"))
        self.assertIn("told twice", judge(good + good, code=1, scene="blocked"))
        self.assertIn("after 15.4", judge(line.format("15.4"), code=1, scene="blocked"))

    def test_who_is_lost_is_named_in_time(self) -> None:
        told = "figure early code 15 seconds {}\n"
        line = "madrigal: node 1 on h1 cannot reach node 2 on h1: 10.77.0.1:4: Connection refused (os error 111); and so on\n"
        self.assertEqual(judge(line + told.format("12.9"), "early", 1), "")
        self.assertEqual(judge("madrigal: node 1 on h1 has lost node 2 on h1: its process ended, or closed\n", "early", 1), "")
        self.assertEqual(judge(line, "early", 0), "no error")
        self.assertIn("after 25.0", judge(line + told.format("25.0"), "early", 1))
        self.assertIn("no line", judge(line.replace("node 2", "somebody"), "early", 1))
        silent = "madrigal: node 1 on h1 has had no answer from node 2 on h2 for 8 s: its host, or the network to it, is down\n"
        self.assertEqual(judge(silent, "cut", 0), "")
        self.assertIn("no line", judge(silent.replace("on h2", "on h1"), "cut", 1))
        self.assertIn("no line", judge(line, "cut", 1))

    def test_what_waits_is_told(self) -> None:
        line = "madrigal: node 1 on h1 could send nothing to node 2 on h1 for 10 s: 65536 KiB of messages wait there for receives\n"
        self.assertEqual(judge(line + GOOD.replace("ring", "flood"), "flood"), "")
        self.assertIn("nothing tells", judge(GOOD.replace("ring", "flood"), "flood"))

    def test_why_tells_what_refuses_single_copies(self) -> None:
        how, refused = "up shm 1 inbox, single copy\n", "not by single copy: process_vm_readv: Operation not permitted (os error 1)\n"
        good = GOOD.replace("ring", "why")
        self.assertEqual(judge(how + good, "why"), "")
        self.assertEqual(judge(refused + good, "why", scene="no-ptrace"), "")
        self.assertIn("not told", judge(good, "why"))
        self.assertIn("not told", judge(good, "why", scene="no-ptrace"))
        self.assertIn("not told", judge(how + good, "why", scene="no-ptrace"))
        self.assertIn("nothing is told", judge(how + good, "why", scene="two"))
        self.assertEqual(judge(how + "a: long messages by tcp: in parts\n" + good, "why", scene="two"), "")


class Comparing(unittest.TestCase):
    STOCK = {"a": "pass", "b": "FAILED", "b: b.One.test": "FAILED", "c": "FAILED"}

    def test_what_is_worse_than_stock(self) -> None:
        self.assertEqual(baseline.worse(self.STOCK, {"a": "FAILED", "a: a.One.test": "FAILED", "new": "FAILED"}), ["a", "new"])
        self.assertEqual(baseline.worse(self.STOCK, {"a": "pass", "b": "FAILED", "b: b.One.test": "FAILED", "c": "FAILED"}), [])
        self.assertEqual(baseline.worse(self.STOCK, {"b": "FAILED", "b: b.One.other": "FAILED"}), ["b: b.One.other"])
        # Stock did not get so far as to tell which.
        self.assertEqual(baseline.worse(self.STOCK, {"c": "FAILED", "c: c.One.test": "FAILED"}), [])

    def test_what_is_recorded(self) -> None:
        kept = baseline.FOLDER
        with tempfile.TemporaryDirectory() as folder:
            try:
                baseline.FOLDER = Path(folder)
                baseline.record("x", self.STOCK, "about")
                self.assertEqual(baseline.read("x"), self.STOCK)
                baseline.record("x", {"b": "pass", "d": "skipped"}, "about")
                self.assertEqual(baseline.read("x"), {"a": "pass", "b": "pass", "c": "FAILED"})
            finally:
                baseline.FOLDER = kept


class Starting(unittest.TestCase):
    def test_what_users_type_says_nothing_of_the_provider(self) -> None:
        for mpi in all_mpis(typed=True):
            command = mpi.command(JOB)
            self.assertIn("bin/madrigal exec -- ", command)
            self.assertNotIn("FI_PROVIDER", command)
            self.assertNotIn("mtl", command)
            self.assertIn("FI_PROVIDER_PATH", MPI[mpi.name].command(JOB))
            self.assertNotIn("exec --", mpi.command(replace(JOB, provider="tcp")))

    def test_a_part_does_as_many_rounds_as_it_is_told(self) -> None:
        for part in stress.PARTS.values():
            jobs = list(part.jobs(333))
            self.assertEqual(sum(1 if part.test == "short" else int(job.words[1]) for job in jobs), 333)
            self.assertEqual({job.ranks for job in jobs}, set(part.ranks))


class Tables(unittest.TestCase):
    def test_every_scene_and_test_has_a_name_of_its_own_that_baselines_can_hold(self) -> None:
        names = [scene.name for scene in SCENES]
        self.assertEqual(len(set(names)), len(names))
        self.assertFalse([name for name in [*names, *checks.TESTS, *MPI] if " " in name])


if __name__ == "__main__":
    unittest.main()
