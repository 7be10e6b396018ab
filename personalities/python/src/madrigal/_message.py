"""What messages have in common that borrow the memory of Python's objects."""

from __future__ import annotations

from typing import Callable, Union

from ._handle import Handle, done
from ._library import lib
from ._memory import Lent, Whole
from .errors import failed

_BUSY = -9


class Borrowing(Handle):
    """A message that is packed or taken apart, with the memory that it has borrowed until it ends."""

    __slots__ = ("_lent",)

    def __init__(self, handle: int, of: Handle) -> None:
        super().__init__(handle, of)
        self._lent: list[Union[Lent, Whole]] = []

    def _finish(self, function: Callable[[int], int]) -> None:
        """Ends it by this call. While another thread is inside, the library has the memory: Busy, and nothing has ended."""
        handle, self._handle = self._handle, 0
        code = function(handle)
        if code == _BUSY:
            self._handle = handle
            failed(code)
        for memory in self._lent:
            memory.release()
        self._lent.clear()
        done(code)

    def close(self) -> None:
        """Sends nothing, or throws the rest away. Busy while another thread takes a piece of it."""
        if self._handle:
            self._finish(lib.mdg_close)
