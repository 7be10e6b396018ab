"""Tests of the parts that could hide a failure. Run: python3 -m unittest discover tests/suites"""

from __future__ import annotations

import importlib
import sys
import tempfile
import time
import unittest
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import run
from bed import cage, compare, modes, parse, table
from bed.compare import BROKEN, FLAKY, ONCE, Verdict, count, enough, judge, lacking
from bed.home import Unable, _one_line, _official
from bed.results import CRASH, FAIL, HANG, LOST, OPEN, PASS, SKIP, Ended, Results, Unit, died, settle
from bed.running import Runner

UNIT = Unit("u", ("true",))


class Comparing(unittest.TestCase):
    def test_what_passes_plain_only_lacks(self) -> None:
        plain = {"a": PASS, "b": PASS, "c": FAIL, "d": PASS, "e": SKIP, "f": PASS}
        wrapped = {"a": PASS, "b": FAIL, "c": FAIL, "e": FAIL, "f": SKIP}
        self.assertEqual(lacking(plain, wrapped), ["b", "d", "f"])

    def test_a_case_that_fails_plain_too_is_flaky(self) -> None:
        self.assertEqual(judge(FAIL, [FAIL, FAIL], [PASS, FAIL]).kind, FLAKY)
        self.assertEqual(judge(HANG, [PASS], [HANG]).kind, FLAKY)

    def test_one_that_fails_wrapped_again_is_broken(self) -> None:
        self.assertEqual(judge(FAIL, [PASS, FAIL], [PASS, PASS]).kind, BROKEN)
        self.assertEqual(judge(SKIP, [SKIP], [PASS]).kind, BROKEN)
        self.assertEqual(judge(LOST, [LOST], [PASS]).kind, BROKEN)

    def test_a_crash_is_never_explained_away(self) -> None:
        self.assertEqual(judge(CRASH, [PASS, PASS], [PASS, PASS]).kind, BROKEN)
        self.assertEqual(judge(FAIL, [CRASH], [FAIL]).kind, BROKEN)
        self.assertEqual(judge(CRASH, [CRASH], [CRASH]).kind, FLAKY)

    def test_what_is_never_seen_again_is_named(self) -> None:
        verdict = judge(FAIL, [PASS, PASS, PASS], [PASS, PASS, PASS])
        self.assertEqual(verdict, Verdict(ONCE, "wrapped 1 of 4 (fail), plain 0 of 4"))

    def test_when_no_further_look_is_needed(self) -> None:
        self.assertFalse(enough(FAIL, [], [], 4))
        self.assertFalse(enough(FAIL, [PASS], [PASS], 4))
        self.assertTrue(enough(FAIL, [FAIL, FAIL], [PASS, PASS], 4))
        self.assertTrue(enough(HANG, [HANG], [PASS], 4))
        self.assertTrue(enough(FAIL, [FAIL], [FAIL], 4))
        self.assertTrue(enough(FAIL, [PASS] * 4, [PASS] * 4, 4))

    def test_every_case_counts_once(self) -> None:
        plain = {"a": PASS, "b": PASS, "c": FAIL, "d": SKIP, "e": FAIL, "f": PASS, "g": PASS}
        wrapped = {"a": PASS, "b": FAIL, "c": FAIL, "d": SKIP, "e": PASS, "f": CRASH, "g": FAIL, "new": PASS}
        told = count(plain, wrapped, {"b": Verdict(FLAKY, ""), "f": Verdict(BROKEN, ""), "g": Verdict(ONCE, "")})
        self.assertEqual((told.passed, told.better, told.failed_as_plain, told.skipped, told.broken, told.flaky, told.once), (3, 1, 1, 1, 1, 1, 1))

    def test_only_what_is_broken_fails_the_run(self) -> None:
        line = table.Line("s", "default", verdicts={"a": Verdict(ONCE, ""), "b": Verdict(FLAKY, "")})
        self.assertFalse(table.failed([line], strict=False))
        self.assertTrue(table.failed([line], strict=True))
        self.assertTrue(table.failed([replace(line, verdicts={"a": Verdict(BROKEN, "")})], strict=False))
        self.assertTrue(table.failed([replace(line, late=1)], strict=False))
        self.assertFalse(table.failed([replace(line, mode="plain", late=1)], strict=False))


class Ends(unittest.TestCase):
    def test_which_ends_are_deaths(self) -> None:
        self.assertTrue(all(died(code) for code in (-11, -6, -7, 139, 134)))
        self.assertFalse(any(died(code) for code in (0, 1, 2, -15, -9, 143, None, 255)))

    def test_open_cases_end_as_their_program(self) -> None:
        results = {"a": PASS, "b": OPEN}
        self.assertEqual(settle(results, Ended(None))["b"], HANG)
        self.assertEqual(settle(results, Ended(-11))["b"], CRASH)
        self.assertEqual(settle(results, Ended(0))["b"], FAIL)
        self.assertEqual(settle(results, Ended(0))["a"], PASS)


class Parsing(unittest.TestCase):
    def test_a_status(self) -> None:
        self.assertEqual(parse.by_status(UNIT, Ended(0)), {"u": PASS})
        self.assertEqual(parse.by_status(UNIT, Ended(1)), {"u": FAIL})
        self.assertEqual(parse.by_status(UNIT, Ended(77), (77,)), {"u": SKIP})
        self.assertEqual(parse.by_status(UNIT, Ended(-11)), {"u": OPEN})
        self.assertEqual(parse.by_status(UNIT, Ended(None)), {"u": OPEN})

    def test_json_lines(self) -> None:
        text = '{"case": "a", "result": "lost"}\n{"case": "a", "result": "open"}\n{"case": "a", "result": "pass"}\n{"case": "b", "result": "open"}\n{"ca'
        self.assertEqual(parse.json_lines(text), {"a": PASS, "b": OPEN})

    def test_tap(self) -> None:
        out = "1..5\nok 1 - one\n# a remark\nnot ok 2 - two\nok 3 # skip no IPv6\nnot ok 4 - four # TODO later\n"
        self.assertEqual(parse.tap(UNIT, Ended(1, out)), {"u 1": PASS, "u 2": FAIL, "u 3": SKIP, "u 4": SKIP, "u 5": OPEN, "u (its end)": FAIL})
        self.assertEqual(parse.tap(UNIT, Ended(0, "1..0 # SKIP no such thing\n")), {"u (its end)": SKIP})
        self.assertEqual(parse.tap(UNIT, Ended(0, "ok\nok\nnot ok\n")), {"u 1": PASS, "u 2": PASS, "u 3": FAIL, "u (its end)": PASS})
        self.assertEqual(parse.tap(UNIT, Ended(-11, "ok 1\n"))["u (its end)"], OPEN)

    def test_libtest(self) -> None:
        out = ("running 6 tests\ntest a::b ... ok\ntest c ... FAILED\ntest d ... ignored, not here\ntest e - should panic ... ok\n"
               "test noisy ... some words\nmore words\nok\ntest last ... ")
        self.assertEqual(parse.libtest(UNIT, Ended(None, out)), {"u a::b": PASS, "u c": FAIL, "u d": SKIP, "u e": PASS, "u noisy": PASS, "u last": OPEN,
                                                                 "u (its end)": OPEN})

    def test_ltp(self) -> None:
        self.assertEqual(parse.ltp(UNIT, Ended(0)), {"u": PASS})
        self.assertEqual(parse.ltp(UNIT, Ended(1)), {"u": FAIL})
        self.assertEqual(parse.ltp(UNIT, Ended(2)), {"u": FAIL})
        self.assertEqual(parse.ltp(UNIT, Ended(32, "", "a.c:1: TCONF: no such thing")), {"u": SKIP})
        self.assertEqual(parse.ltp(UNIT, Ended(32, "", "a.c:1: TPASS: good\na.c:2: TCONF: no such thing")), {"u": PASS})
        self.assertEqual(parse.ltp(UNIT, Ended(33)), {"u": FAIL})
        self.assertEqual(parse.ltp(UNIT, Ended(4)), {"u": PASS})
        self.assertEqual(parse.ltp(UNIT, Ended(2, "", "tst_test.c:1: TBROK: Test killed by SIGSEGV!")), {"u": CRASH})
        self.assertEqual(parse.ltp(UNIT, Ended(-11)), {"u": OPEN})

    def test_marked_lines(self) -> None:
        self.assertEqual(parse.marked_lines(UNIT, "[ok]: one\n[err]: two\nelse\n", r"^\[ok\]: (.*)", r"^\[err\]: (.*)"), {"u one": PASS, "u two": FAIL})

    def test_jtreg(self) -> None:
        java = importlib.import_module("peers.java")
        unit = Unit("java/net/Socket", ("jtreg",))
        out = "Passed: java/net/Socket/A.java\nFAILED: java/net/Socket/B.java#id1\nError: java/net/Socket/C.java\nError: Some tests failed\nTest results: passed: 1\n"
        self.assertEqual(java.parse(unit, Ended(2, out)), {"java/net/Socket A.java": PASS, "java/net/Socket B.java#id1": FAIL, "java/net/Socket C.java": FAIL,
                                                           "java/net/Socket (its end)": PASS})

    def test_redis(self) -> None:
        redis = importlib.import_module("peers.redis")
        out = ("\x1b[0;32m[ok]\x1b[0m: ECHO (1 ms)\n[ok]: ECHO (23 ms)\n[err]: Port 21111 in tests/unit/other.tcl\n[ignore]: large: not wanted\n"
               "[exception]: Executing test client: gone\n")
        self.assertEqual(redis.parse(UNIT, Ended(1, out)), {"u ECHO": PASS, "u ECHO #2": PASS, "u Port N": FAIL, "u large: not wanted": SKIP,
                                                            "u Executing test client: gone": FAIL, "u (its end)": FAIL})


class Sources(unittest.TestCase):
    def test_only_lists_of_the_distribution_are_used(self) -> None:
        self.assertTrue(_official("URIs: http://deb.debian.org/debian\n"))
        self.assertFalse(_official("URIs: https://deb.nodesource.com/node_20.x\n"))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "sources.list"
            path.write_text("deb http://deb.debian.org/debian bookworm main\ndeb https://packages.example.net/apt x main\n")
            self.assertEqual(_one_line(path), "deb-src http://deb.debian.org/debian bookworm main\n")


class Scripted:
    """A suite whose units are lines of shell: each case is printed when it begins, and with `ok` when it passes."""

    LONG, SECONDS = False, 60.0

    def parse(self, unit: Unit, ended: Ended) -> Results:
        results: Results = {}
        for line in ended.out.splitlines():
            name, _, rest = line.partition(" ")
            results[name] = PASS if rest == "ok" else FAIL if rest == "bad" else OPEN
        return results

    def only(self, unit: Unit, cases: list[str]) -> Unit | None:
        return Unit(unit.name, (*unit.words[:3], "sh", *cases), seconds=unit.seconds)


def scripted(script: str, *cases: str, seconds: float = 20) -> Unit:
    return Unit("s", ("sh", "-c", f'for c; do echo $c; {script}; echo "$c ok"; done', "sh", *cases), seconds=seconds)


def _caged() -> bool:
    try:
        cage.check()
        return True
    except Unable:
        return False


@unittest.skipUnless(_caged(), "no namespaces here")
class Running(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.runner = Runner(Scripted(), Path(self.folder.name), again=3)
        self.plain = modes.mode("plain", Path("/"), 1)
        # Stands in for a wrapper that changes something: the script looks at it.
        self.wrapped = replace(modes.mode("plain", Path("/"), 1), name="default", environment={"WRAPPED": "1"})

    def both(self, unit: Unit) -> tuple[Results, dict[str, str]]:
        before = self.runner.plain(unit, self.plain)
        told = self.runner.wrapped(unit, self.wrapped, self.plain, before, time.monotonic() + 300)
        return told.results, {case: verdict.kind for case, verdict in told.verdicts.items()}

    def test_all_is_well(self) -> None:
        self.assertEqual(self.both(scripted("true", "a", "b")), ({"a": PASS, "b": PASS}, {}))

    def test_a_crash_in_the_middle_costs_one_case(self) -> None:
        results, verdicts = self.both(scripted('[ -n "$WRAPPED" ] && [ $c = b ] && kill -SEGV $$', "a", "b", "c", "d"))
        self.assertEqual(results, {"a": PASS, "b": CRASH, "c": PASS, "d": PASS})
        self.assertEqual(verdicts, {"b": BROKEN})

    def test_a_hang_costs_one_case(self) -> None:
        self.runner.patience = 0.1
        results, verdicts = self.both(scripted('[ -n "$WRAPPED" ] && [ $c = b ] && sleep 100', "a", "b", "c", seconds=60))
        self.assertEqual(results, {"a": PASS, "b": HANG, "c": PASS})
        self.assertEqual(verdicts, {"b": BROKEN})

    def test_what_a_command_leaves_behind_ends_with_it(self) -> None:
        mark = f"{time.time_ns()}"
        self.runner.plain(Unit("s", ("sh", "-c", f"setsid sleep 1000.{mark} & echo a ok; exec true"), seconds=20), self.plain)
        time.sleep(0.3)
        lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
        self.assertFalse([line for line in lines if mark.encode() in line and b"sleep" in line])

    def test_networks_and_temporary_files_are_private(self) -> None:
        if any(Path("/tmp") in place.parents for place in (cage.HOME, cage.ROOT, Path(sys.executable))):
            self.skipTest("what is needed lies below /tmp, which stays as it is")
        unit = Unit("s", ("sh", "-c", "ls /tmp | wc -l; ls /dev/shm | wc -l; cat /proc/net/dev | wc -l; readlink /proc/self; echo $$"), seconds=20)
        with cage.Cage() as one:
            told = one.run(unit, [], {}, 20, 20)
        files, shared, cards, myself, _ = (int(line) for line in told.out.split())
        self.assertEqual((files, shared, cards), (0, 0, 3))
        self.assertLess(myself, 50)


class Tables(unittest.TestCase):
    def test_every_suite_has_what_is_asked_of_it(self) -> None:
        for name in run._names():
            suite = importlib.import_module(f"peers.{name}")
            self.assertIsInstance(suite.LONG, bool, name)
            self.assertGreater(suite.SECONDS, 0)
            self.assertTrue(suite.__doc__)
            for function in ("setup", "units", "parse", "only"):
                self.assertTrue(callable(getattr(suite, function)), f"{name}.{function}")

    def test_wrapped_modes_check_themselves(self) -> None:
        for name in modes.NAMES:
            self.assertEqual("MADRIGAL_CHECK" in modes.mode(name, Path("m"), 7).environment, name != "plain")
        self.assertEqual(modes.mode("random", Path("m"), 7).environment["MADRIGAL_EAGER"], "random:7")
        self.assertEqual(modes.mode("eager", Path("m"), 7).wrap, ["m", "exec", "--"])


if __name__ == "__main__":
    unittest.main()
