"""Memory of Python's objects, lent to the library without a copy."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_char_p, c_int, c_ssize_t, c_void_p, py_object
from types import TracebackType
from typing import Any, Optional, Union

# Any object with the buffer protocol whose bytes lie one behind the other: bytes, bytearray, memoryview, array, numpy.ndarray.
# (collections.abc.Buffer has the name only from Python 3.12 on.)
Bytes = Any

_WRITABLE = 1


class _View(ctypes.Structure):
    """Py_buffer (Include/pybuffer.h), which is part of the stable interface."""

    _fields_ = [("buf", c_void_p), ("obj", c_void_p), ("len", c_ssize_t), ("itemsize", c_ssize_t), ("readonly", c_int), ("ndim", c_int),
                ("format", c_char_p), ("shape", POINTER(c_ssize_t)), ("strides", POINTER(c_ssize_t)), ("suboffsets", POINTER(c_ssize_t)),
                ("internal", c_void_p)]


_get = ctypes.pythonapi.PyObject_GetBuffer
_get.argtypes, _get.restype = [py_object, POINTER(_View), c_int], c_int
_release = ctypes.pythonapi.PyBuffer_Release
_release.argtypes, _release.restype = [POINTER(_View)], None


class Lent:
    """An object's memory: `address` and `size`, in bytes. Until it is released the object cannot be resized, and lives.

    A BufferError if the bytes do not lie one behind the other, or may not be written where that is asked; a TypeError for what has none.
    """

    __slots__ = ("address", "size", "_view")

    def __init__(self, data: Bytes, writable: bool = False) -> None:
        self._view: Optional[_View] = None
        view = _View()
        # An exception of Python's own comes out of the call.
        _get(data, byref(view), _WRITABLE if writable else 0)
        self._view, self.address, self.size = view, view.buf or 0, view.len

    def release(self) -> None:
        """The object is its owner's again. More than once is nothing."""
        view, self._view = self._view, None
        if view is not None:
            _release(byref(view))

    def __enter__(self) -> "Lent":
        return self

    def __exit__(self, kind: Optional[type[BaseException]], value: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        self.release()

    def __del__(self) -> None:
        self.release()


class Whole:
    """The memory of `bytes`, which nobody can change: no view is needed, only the object."""

    __slots__ = ("address", "size")

    def __init__(self, data: bytes) -> None:
        self.address, self.size = data, len(data)

    def release(self) -> None:
        """Nothing was taken."""

    def __enter__(self) -> "Whole":
        return self

    def __exit__(self, kind: Optional[type[BaseException]], value: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        pass


def lent(data: Bytes) -> Union[Lent, Whole]:
    """Memory that is only read."""
    return Whole(data) if type(data) is bytes else Lent(data)
