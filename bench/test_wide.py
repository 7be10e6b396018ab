"""Tests of what the figures of long lines are read from. Run: python3 -m unittest discover bench"""

from __future__ import annotations

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from wide import page, streams
from wide.measure import Result

WATCHED = """at 100.0
0 0 10.1.0.2:40001 10.2.0.2:7780 bbr wscale:7,7 rto:230 bytes_sent:9 bytes_acked:1000 segs_out:3
at 100.5
0 0 10.1.0.2:40001 10.2.0.2:7780 bbr wscale:7,7 bytes_acked:626000 segs_out:3
0 0 10.1.0.2:7780 10.2.0.2:40002 bbr bytes_acked:62500
at 101.0
0 0 10.1.0.2:40001 10.2.0.2:7780 bbr bytes_acked:626000
"""


class Streams(unittest.TestCase):
    def test_each_connection_has_its_rate_between_two_looks(self) -> None:
        first, second = streams.parse(WATCHED)
        self.assertEqual((first.port, first.times, first.rates), (40001, [0.0, 0.5, 1.0], [0.016, 10.0, 0.0]))
        self.assertEqual((second.port, second.times, second.rates), (40002, [0.5], [1.0]))

    def test_all_of_them_together_are_their_sum(self) -> None:
        self.assertEqual(page.together(streams.parse(WATCHED)), ([0.0, 0.5, 1.0], [0.016, 11.0, 0.0]))


class Results(unittest.TestCase):
    def test_less_than_wanted_or_than_plain_is_short(self) -> None:
        def one(plain: float, madrigal: float, least: float | None) -> bool:
            return Result("long", "bbr", plain, madrigal, 1, least).falls_short()

        self.assertFalse(one(90, 92, 92))
        self.assertTrue(one(90, 91, 92))
        self.assertTrue(one(96, 93, 92))

    def test_answers_that_come_late_are_short(self) -> None:
        self.assertTrue(Result("urgent", "bbr", 90, 90, 1, 85, late=230, most_late=220).falls_short())


if __name__ == "__main__":
    unittest.main()
