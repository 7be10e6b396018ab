"""What the library has open for Python."""

from __future__ import annotations

import json
from types import TracebackType
from typing import Any, Callable, Optional, TypeVar

from ._library import lib, opened, text
from .errors import failed

Self = TypeVar("Self", bound="Handle")


class Handle:
    """Something of the library's that is open. Closed by `close()`, at the end of a `with`, or when nobody has it any more."""

    __slots__ = ("_handle", "_of", "__weakref__")

    def __init__(self, handle: int, of: "Optional[Handle]" = None) -> None:
        self._handle = handle
        # What it was opened from lives as long: that closes it.
        self._of = of

    def close(self) -> None:
        """Closes it; more than once is nothing."""
        handle, self._handle = self._handle, 0
        if handle:
            lib.mdg_close(handle)

    @property
    def closed(self) -> bool:
        """Whether it was closed here."""
        return self._handle == 0

    def why(self) -> dict[str, Any]:
        """What is known of it: of a link its driver, both addresses, the other paths, and why not those; of a runtime its drivers."""
        known: dict[str, Any] = json.loads(_text(lib.mdg_why, self._handle))
        return known

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], value: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        self.close()

    def __del__(self) -> None:
        # The library's functions may be gone when the interpreter ends.
        if getattr(self, "_handle", 0) and lib is not None:
            self.close()


def made(function: Callable[..., int], *arguments: object) -> int:
    """The handle that a call of the library's puts into its last argument."""
    code, handle = opened(function, *arguments)
    return handle if code >= 0 else failed(code)


def done(code: int) -> int:
    """What a call of the library's returned, if it is no error."""
    return code if code >= 0 else failed(code)


def address_of(handle: int) -> str:
    """The address of an acceptor, or of a link's peer."""
    return _text(lib.mdg_address, handle)


def _text(function: Callable[..., int], handle: int) -> str:
    code, said = text(function, handle)
    return said if code >= 0 else failed(code)
