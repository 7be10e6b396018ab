"""Tests of the parts of the harness that could make a figure wrong. Run: python3 -m unittest discover bench"""

from __future__ import annotations

import os
import struct
import sys
import time
import unittest
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import builds, output, page, processes, report, stats
from harness.measure import Figure, Result
from rows import all_rows


def result(plain: list[float], madrigal: list[float], **figure: object) -> Result:
    return Result(Figure("x", "u", 2.0, **figure), plain, madrigal, "cubic")


class Figures(unittest.TestCase):
    def test_above_one_is_better_for_rates_and_for_times(self) -> None:
        self.assertEqual(result([1, 2, 3], [4, 4, 4]).ratio, 2)
        self.assertEqual(result([10, 10, 10], [5, 5, 5], lower_is_better=True).ratio, 2)

    def test_one_bad_run_fails_a_row_with_a_floor(self) -> None:
        self.assertTrue(result([1, 1, 1], [2, 2, 0.5]).passed)
        self.assertFalse(result([1, 1, 1], [2, 2, 0.5], floor=0.8).passed)

    def test_an_absolute_figure_is_judged_by_what_is_added(self) -> None:
        self.assertTrue(result([100], [101.5], absolute=True).passed)
        self.assertFalse(result([100], [102.5], absolute=True).passed)

    def test_bounds_hold_the_median_and_are_the_same_every_time(self) -> None:
        values = [0.9, 0.95, 1.0, 1.0, 1.05, 1.1, 1.0, 0.98, 1.02, 0.99]
        low, high = stats.bounds(values)
        self.assertTrue(0.9 <= low <= 1.0 <= high <= 1.1)
        self.assertEqual(stats.bounds(values), (low, high))


class Pages(unittest.TestCase):
    HEADER = {"runs": 3, "seconds_per_run": 1.0, "congestion_controls": ["cubic", "bbr"], "date": "2026-01-02", "commit": "abc", "cpus": 2,
              "cpu": "x", "kernel": "6", "wake_up_us": 40.0, "cache_line_ns": 50.0}

    def test_a_page_has_every_figure_and_says_what_is_short_or_missing(self) -> None:
        figures = [output.as_dict(result([1, 2, 3], [6, 6, 6])), output.as_dict(result([10], [12.5], absolute=True))]
        text = page.text({"header": self.HEADER, "figures": figures, "skipped": {"gone": "no such program\nmore", "far": f"no {builds.ROOT}/target/x"}})
        self.assertIn("| x | u | 2 | 6 | 3.00 | 3.00 | 2 | 0 % |  |  |  |", text)
        self.assertIn("| +2.50 |  | less than +2 | 0 % |  |  | short |", text)
        self.assertIn("* gone: no such program\n", text)
        self.assertIn("* far: no target/x\n", text)
        self.assertIn("2026-01-02, commit abc", text)


class Rows(unittest.TestCase):
    def test_each_names_its_figures(self) -> None:
        for name, row in all_rows().items():
            self.assertTrue(row.figures and all(isinstance(figure, Figure) for figure in row.figures), name)


class Reports(unittest.TestCase):
    def write(self, fd: int, index: int, ring: int, tcp: int) -> None:
        at = report.RECORDS_AT + index * report.RECORD.size
        os.pwrite(fd, struct.pack("<IIIIQQQQQ", 8, 2, 0, 1, ring, 0, tcp, 0, 1), at)

    def test_counters_are_added_over_connections_that_use_one_record(self) -> None:
        fd = os.memfd_create("madrigal-report")
        try:
            os.ftruncate(fd, 2 << 20)
            os.pwrite(fd, struct.pack("<8sIIQ", report.MAGIC, os.getpid(), 0, 0), 0)
            traffic = report.Traffic()
            self.write(fd, 3, 1000, 10)
            traffic.sample([os.getpid()], count=False)
            self.write(fd, 3, 1500, 20)
            self.write(fd, 20000, 7, 0)
            traffic.sample([os.getpid()])
            self.assertEqual((traffic.ring, traffic.tcp), (507, 10))
            self.write(fd, 3, 100, 5)
            traffic.sample([os.getpid()])
            self.assertEqual((traffic.ring, traffic.tcp), (607, 15))
            self.assertTrue(traffic.by_ring)
        finally:
            os.close(fd)

    def test_a_process_without_report_adds_nothing(self) -> None:
        traffic = report.Traffic()
        traffic.sample([1, 2**22 + 5])
        self.assertEqual((traffic.reports, traffic.ring), (0, 0))


class Processes(unittest.TestCase):
    def test_children_in_sessions_of_their_own_are_ended_too(self) -> None:
        processes.become_reaper()
        with TemporaryDirectory() as folder:
            child = processes.Child(["sh", "-c", "setsid sleep 1000 & echo started; wait"], Path(folder) / "log")
            child.wait_for_text("started")
            time.sleep(0.1)
            below = processes.descendants(child.pid)
            self.assertEqual(len(below), 1)
            child.stop()
            self.assertFalse(any(pid in processes.descendants(os.getpid()) for pid in below))

    def test_a_program_that_fails_says_so(self) -> None:
        with self.assertRaisesRegex(processes.Failed, "ended with 3: gone"):
            processes.run(["sh", "-c", "echo gone >&2; exit 3"])


if __name__ == "__main__":
    unittest.main()
