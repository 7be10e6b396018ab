"""Reads what test programs print. Each returns cases in the order they ran."""

from __future__ import annotations

import json
import re

from bed.results import FAIL, OPEN, PASS, SKIP, Ended, Results, Unit, died


def by_status(unit: Unit, ended: Ended, skipped: tuple[int, ...] = ()) -> Results:
    """A unit that is one case: its status tells."""
    if ended.code is None or died(ended.code):
        return {unit.name: OPEN}
    return {unit.name: PASS if ended.code == 0 else SKIP if ended.code in skipped else FAIL}


def json_lines(text: str) -> Results:
    """Lines such as {"case": "a", "result": "pass"}: one when a case begins (`open`), one when it ends. A line cut short is dropped."""
    results: Results = {}
    for line in text.splitlines():
        try:
            told = json.loads(line)
        except ValueError:
            continue
        results[told["case"]] = told["result"]
    return results


def tap(unit: Unit, ended: Ended) -> Results:
    """The Test Anything Protocol; cases of one file are told apart by number and name. What the plan promises and does not come is open."""
    results: Results = {}
    planned = None
    for line in ended.out.splitlines():
        if found := re.match(r"1\.\.(\d+)\s*(#\s*skip)?", line, re.IGNORECASE):
            planned = int(found[1])
        elif found := re.match(r"(not )?ok\b\s*(\d*)\s*-?\s*([^#]*)(#.*)?$", line, re.IGNORECASE):
            number = int(found[2] or len(results) + 1)
            remark = (found[4] or "").lower()
            passed = SKIP if re.match(r"#\s*(skip|todo)", remark) else FAIL if found[1] else PASS
            results[_tap_name(unit, number, found[3])] = passed
    # Numbers alone tell which are missing: names of those that did not come are not known.
    told = {int(re.search(r" (\d+)", case)[1]) for case in results}
    for number in range(1, (planned or 0) + 1):
        if number not in told:
            results[_tap_name(unit, number, "")] = OPEN
    whole = OPEN if ended.code is None or died(ended.code) else PASS if ended.code == 0 else FAIL
    if planned == 0 and not results:
        whole = SKIP
    return results | {f"{unit.name} (its end)": whole}


def _tap_name(unit: Unit, number: int, title: str) -> str:
    # Times, numbers of processes and ports in titles differ from run to run; the number of the test does not.
    return f"{unit.name} {number}"


def libtest(unit: Unit, ended: Ended) -> Results:
    """What Rust's tests print, one thread or many: `test name ... ok`. With one thread a name without a result is one that was open."""
    results: Results = {}
    for line in ended.out.splitlines():
        # A test's own output may stand between the name and the result, or in front of the name.
        if found := re.search(r"\btest (\S+(?: - .*?\(line \d+\))?)(?: - should panic)? \.\.\.(?:\s.*)?$", line):
            name = f"{unit.name} {found[1]}"
            results[name] = _libtest_result(line[found.end(1):]) or OPEN
        elif (found := re.search(r"(?:^|\s)(ok|FAILED|ignored(?:, .*)?)$", line)) and results and list(results.values())[-1] == OPEN:
            results[list(results)[-1]] = _libtest_result(f" {found[1]}") or OPEN
    whole = OPEN if ended.code is None or died(ended.code) else PASS if ended.code == 0 else FAIL
    return results | {f"{unit.name} (its end)": whole}


def _libtest_result(rest: str) -> str:
    if re.search(r"\sok$", rest):
        return PASS
    if re.search(r"\sFAILED$", rest):
        return FAIL
    return SKIP if re.search(r"\signored(, .*)?$", rest) else ""


def ltp(unit: Unit, ended: Ended) -> Results:
    """A program of the Linux Test Project: its status is a set of bits, 1 failed, 2 broken, 4 warning, 32 not for this configuration.
    A program that its own watchdog ended says so only in words."""
    if ended.code is None or died(ended.code):
        return {unit.name: OPEN}
    if "Test timeouted" in ended.err or "killed by SIGSEGV" in ended.err:
        return {unit.name: "hang" if "Test timeouted" in ended.err else "crash"}
    if ended.code & 3:
        return {unit.name: FAIL}
    return {unit.name: SKIP if ended.code & 32 and not re.search(r"\bTPASS\b", ended.out + ended.err) else PASS if ended.code & ~36 == 0 else FAIL}


def marked_lines(unit: Unit, text: str, passed: str, failed: str, skipped: str = r"(?!)") -> Results:
    """Lines that match one of three expressions, whose first group is the name of the case."""
    results: Results = {}
    for line in text.splitlines():
        for result, pattern in ((PASS, passed), (FAIL, failed), (SKIP, skipped)):
            if found := re.search(pattern, line):
                results[f"{unit.name} {found[1].strip()}"] = result
                break
    return results
