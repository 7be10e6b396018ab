"""Runs the cases of one module of Python's own tests, and writes to $TMPDIR/results.jsonl when each begins and ends: what is printed
by tests, by their children and by their threads makes unittest's own output hard to read, and a crash would lose it.

    python cpython_cases.py MODULE [CASE...]      cases as unittest names them, without the module's name
"""

import json
import os
import sys
import test
import unittest

# Children that multiprocessing spawns come by here, too.
if more := os.environ.get("SUITE_MORE"):
    test.__path__.append(more)


LEFT_OUT = {
    # In a virtual machine there may be a vsock, but nobody at its other end.
    "ThreadedVSOCKSocketStreamTest.testStream",
}


class Told(unittest.TextTestResult):
    """Writes a line before and after each case."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self._file = open(os.path.join(os.environ["TMPDIR"], "results.jsonl"), "a", buffering=1)
        self._now = {}

    def _tell(self, test, result):
        if self._owner == os.getpid():
            self._file.write(json.dumps({"case": name_of(test), "result": result}) + "\n")

    _owner = os.getpid()

    def startTest(self, test):
        super().startTest(test)
        self._now[name_of(test)] = "pass"
        self._tell(test, "open")

    def stopTest(self, test):
        super().stopTest(test)
        self._tell(test, self._now.pop(name_of(test), "pass"))

    def addError(self, test, err):
        super().addError(test, err)
        self._bad(test, "fail")

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self._bad(test, "fail")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self._bad(test, "skip")

    def addExpectedFailure(self, test, err):
        super().addExpectedFailure(test, err)
        self._bad(test, "skip")

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self._bad(test, "skip")

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self._bad(test, "fail")

    def _bad(self, test, result):
        # Also a class or a module whose preparation failed: those never start.
        name = name_of(test)
        if name in self._now:
            if self._now[name] != "fail":
                self._now[name] = result
        else:
            self._tell(test, result)


def name_of(test):
    """Of a case, without its module; a subtest counts as its test."""
    test = getattr(test, "test_case", test)
    name = test.id()
    return name.split(".", MODULE.count(".") + 1)[-1] if name.startswith(MODULE + ".") else name


def flat(suite):
    """All cases of a suite."""
    for part in suite:
        if isinstance(part, unittest.TestSuite):
            yield from flat(part)
        else:
            yield part


def main():
    """Loads, picks, runs."""
    from test import support
    # What needs disks, a screen or a sound card is left out. A network outside is not there, and tests that want one say so.
    support.use_resources = ["cpu", "network", "subprocess", "walltime"]
    support.verbose = 1
    try:
        tests = unittest.defaultTestLoader.loadTestsFromName(MODULE)
    except unittest.SkipTest as why:
        print(f"skipped: {why}")
        return 0
    wanted = set(sys.argv[2:])
    tests = unittest.TestSuite(test for test in flat(tests) if (not wanted or name_of(test) in wanted) and name_of(test) not in LEFT_OUT)
    with open(os.path.join(os.environ["TMPDIR"], "results.jsonl"), "a") as file:
        file.writelines(json.dumps({"case": name_of(test), "result": "lost"}) + "\n" for test in tests)
    runner = unittest.TextTestRunner(resultclass=Told, verbosity=2)
    return 0 if runner.run(tests).wasSuccessful() else 1


MODULE = sys.argv[1] if len(sys.argv) > 1 else ""
if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.exit(code)
