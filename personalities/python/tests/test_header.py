"""What the package knows of the library by heart is what madrigal.h says."""

from __future__ import annotations

import re
import unittest

from tree import ROOT

from madrigal import _library, _message, _waiting, circuit, errors

HEADER = (ROOT / "personalities" / "capi" / "include" / "madrigal.h").read_text()
CODES = {name: int(code) for name, code in re.findall(r"^#define MDG_(\w+) (-?\d+)$", HEADER, re.MULTILINE)}


class Header(unittest.TestCase):
    """Numbers, and how many arguments each function has."""

    def test_every_code_has_its_exception(self) -> None:
        known = {code for name, code in CODES.items() if name.startswith("E") and name not in ("EINTERNAL", "ESYSTEM", "EXPRESS")}
        self.assertEqual(set(errors._KINDS), known)

    def test_numbers(self) -> None:
        here = {"ETIMEDOUT": _waiting.TIMED_OUT, "FOREVER": _library.FOREVER, "ADDRESS": circuit.ADDRESS, "ANY": circuit.ANY,
                "TAGS": circuit._TAGS, "EBUSY": _message._BUSY, "SAFER": circuit._SAFER, "CHEAPER": circuit._CHEAPER, "EXPRESS": circuit._EXPRESS}
        self.assertEqual({name: CODES[name] for name in here}, here)

    def test_functions(self) -> None:
        for name, arguments in {**_library._INT, **_library._LONG, **_library._TEXT}.items():
            with self.subTest(name):
                declared = re.search(rf"^\w[\w *]*\b{name}\(([^;]*?)\);", HEADER, re.MULTILINE)
                self.assertIsNotNone(declared)
                words = declared[1].strip()
                self.assertEqual(len(arguments), 0 if words == "void" else words.count(",") + 1)


if __name__ == "__main__":
    unittest.main()
