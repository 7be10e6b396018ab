"""What goes wrong. Each is an OSError, and the one of Python's own that says the same, where there is one."""

from __future__ import annotations

import errno
from typing import NoReturn

from ._library import lib


class Error(OSError):
    """Something failed. `code` is that of madrigal.h (MDG_E...); `errno` the kernel's number, or the nearest there is to the code; the
    text names both ends or the address, and the reason."""

    code: int = 0


class ArgumentError(Error, ValueError):
    """An argument that cannot be: no address, no such driver, a rank that is not in the group."""


class Refused(Error, ConnectionRefusedError):
    """Nobody listens there."""


class Unreachable(Error, ConnectionError):
    """No path leads there; the text has each that was considered, and why not."""


class TimedOut(Error, TimeoutError):
    """The time given for it passed. Nothing was lost: it can be tried again."""


class Denied(Error, PermissionError):
    """It belongs to another user."""


class Reset(Error, ConnectionResetError):
    """The peer died, or closed without reading what we had sent."""


class Gone(Error, BrokenPipeError):
    """The peer is gone: nothing can be written to it any more."""


class Closed(Error, ConnectionAbortedError):
    """Our own side closed it, or a handle that names nothing was used."""


class Busy(Error, BlockingIOError):
    """Another thread is using it, or too much waits already."""


class Lost(Error, ConnectionError):
    """A node of the group cannot be reached, or is gone."""


class Mismatch(Error):
    """Sender and receiver of a message do not name the same pieces."""


class Forked(Error):
    """This process was forked from one that uses Madrigal: start it with `spawn` or `forkserver` (multiprocessing), or exec."""


_KINDS: dict[int, tuple[type[Error], int]] = {
    -1: (Closed, errno.EBADF), -2: (ArgumentError, errno.EINVAL), -3: (Forked, errno.EPERM), -5: (ArgumentError, errno.EINVAL),
    -6: (ArgumentError, errno.EINVAL), -7: (ArgumentError, errno.EINVAL), -8: (Refused, errno.ECONNREFUSED), -9: (Busy, errno.EAGAIN),
    -10: (TimedOut, errno.ETIMEDOUT), -11: (Denied, errno.EPERM), -12: (Unreachable, errno.EHOSTUNREACH),
    -13: (Closed, errno.ECONNABORTED), -14: (Error, errno.EADDRINUSE), -15: (Error, errno.ENODEV), -16: (Reset, errno.ECONNRESET),
    -17: (Gone, errno.EPIPE), -18: (Error, errno.EPROTO), -19: (ArgumentError, errno.EMSGSIZE), -21: (Error, errno.EMFILE),
    -22: (ArgumentError, errno.EINVAL), -23: (Lost, errno.EHOSTUNREACH), -24: (Mismatch, errno.EBADMSG),
}


def error(code: int) -> Error:
    """The exception for a code that a call of this thread has just returned."""
    kind, nearest = _KINDS.get(code, (Error, errno.EIO))
    said = lib.mdg_error_text() or lib.mdg_strerror(code)
    made = kind(lib.mdg_error_number() or nearest, said.decode())
    made.code = code
    return made


def failed(code: int) -> NoReturn:
    """Raises the exception for a code that a call of this thread has just returned."""
    raise error(code)
