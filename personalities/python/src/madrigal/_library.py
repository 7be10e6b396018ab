"""libmadrigal.so.0: found, loaded, each function with its types. What they do is in madrigal.h."""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, byref, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Callable

NAME = "libmadrigal.so.0"
FOREVER = -1

Handler = ctypes.CFUNCTYPE(None, c_void_p, c_uint64, c_int64)
# For operations that are waited for.
NO_HANDLER = Handler()

_INT = {
    "mdg_runtime_open": [POINTER(c_uint64)],
    "mdg_close": [c_uint64],
    "mdg_error_number": [],
    "mdg_listen": [c_uint64, c_char_p, POINTER(c_uint64)],
    "mdg_serve": [c_uint64, c_char_p, POINTER(c_uint64)],
    "mdg_accept": [c_uint64, c_int64, POINTER(c_uint64)],
    "mdg_connect": [c_uint64, c_char_p, c_int64, POINTER(c_uint64)],
    "mdg_post_read": [c_uint64, c_void_p, c_size_t, Handler, c_void_p, POINTER(c_uint64)],
    "mdg_post_write": [c_uint64, c_void_p, c_size_t, Handler, c_void_p, POINTER(c_uint64)],
    "mdg_post_connect": [c_uint64, c_char_p, Handler, c_void_p, POINTER(c_uint64)],
    "mdg_post_accept": [c_uint64, Handler, c_void_p, POINTER(c_uint64)],
    "mdg_post_close": [c_uint64, Handler, c_void_p, POINTER(c_uint64)],
    "mdg_wait": [c_uint64, c_int64, POINTER(c_int64)],
    "mdg_circuit_open": [c_uint64, c_uint32, POINTER(c_uint64)],
    "mdg_circuit_address": [c_uint64, c_void_p],
    "mdg_circuit_join": [c_uint64, c_void_p, c_size_t],
    "mdg_begin_packing": [c_uint64, c_int, c_uint64, POINTER(c_uint64)],
    "mdg_pack": [c_uint64, c_void_p, c_size_t, c_int],
    "mdg_end_packing": [c_uint64],
    "mdg_flush": [c_uint64, c_int64],
    "mdg_begin_unpacking": [c_uint64, c_int, c_uint64, c_uint64, c_int64, POINTER(c_uint64)],
    "mdg_sender": [c_uint64, POINTER(c_int), POINTER(c_uint64)],
    "mdg_unpack": [c_uint64, c_void_p, c_size_t, c_int],
    "mdg_end_unpacking": [c_uint64],
    "mdg_receive_port_open": [c_uint64, c_char_p, c_char_p, POINTER(c_uint64)],
    "mdg_send_port_open": [c_uint64, c_char_p, c_char_p, POINTER(c_uint64)],
    "mdg_port_connect": [c_uint64, c_char_p, c_int64],
    "mdg_port_disconnect": [c_uint64, c_char_p],
    "mdg_message_new": [c_uint64, POINTER(c_uint64)],
    "mdg_put_number": [c_uint64, c_int, c_void_p],
    "mdg_put_array": [c_uint64, c_int, c_void_p, c_size_t, c_int],
    "mdg_put_text": [c_uint64, c_char_p],
    "mdg_put_begin": [c_uint64],
    "mdg_put_end": [c_uint64],
    "mdg_port_send": [c_uint64, c_uint64],
    "mdg_port_receive": [c_uint64, c_int64, POINTER(c_uint64)],
    "mdg_item": [c_uint64, POINTER(c_int), POINTER(c_size_t)],
    "mdg_get_number": [c_uint64, c_int, c_void_p],
    "mdg_get_array": [c_uint64, c_int, c_void_p, c_size_t],
    "mdg_get_record": [c_uint64, c_int],
    "mdg_incoming_end": [c_uint64],
    "mdg_lossy_listen": [c_uint64, c_char_p, POINTER(c_uint32), c_size_t, POINTER(c_uint64)],
    "mdg_lossy_accept": [c_uint64, c_int64, POINTER(c_uint64)],
    "mdg_lossy_connect": [c_uint64, c_char_p, POINTER(c_uint32), c_size_t, c_int64, POINTER(c_uint64)],
    "mdg_lossy_settled": [c_uint64, c_int64, POINTER(c_uint32), POINTER(c_uint32), c_size_t],
    "mdg_lossy_flush": [c_uint64, c_int64],
    "mdg_mailbox_open": [c_uint64, c_char_p, c_uint32, POINTER(c_uint64)],
    "mdg_mailbox_put": [c_uint64, c_void_p, c_void_p, c_size_t, c_int64],
    "mdg_mailbox_put_buffer": [c_uint64, c_void_p, c_uint64, c_int64],
    "mdg_mailbox_wait": [c_uint64, c_void_p, c_int64, c_void_p],
    "mdg_mailbox_get": [c_uint64, c_uint64, c_int64, POINTER(c_uint64)],
    "mdg_mailbox_drop": [c_uint64, c_uint64],
    "mdg_mailbox_offer": [c_uint64, c_uint64],
    "mdg_mailbox_add_store": [c_uint64, c_char_p],
    "mdg_mailbox_turn": [c_uint64, c_int64],
    "mdg_buffer_new": [c_size_t, POINTER(c_uint64)],
    "mdg_buffer_seal": [c_uint64],
    "mdg_pool_join": [c_uint64, c_char_p, c_int, c_char_p, c_size_t, c_int64, POINTER(c_uint64)],
    "mdg_pool_joined": [c_uint64, c_int64],
    "mdg_pool_leave": [c_uint64, c_int64],
    "mdg_pool_rank": [c_uint64, c_int64],
    "mdg_pool_signal": [c_uint64, c_void_p, c_size_t, c_char_p, c_int64],
    "mdg_pool_set": [c_uint64, c_int, c_char_p, c_char_p, c_size_t, c_int64],
    "mdg_pool_suspect": [c_uint64, c_int64, c_int64],
    "mdg_pool_terminate": [c_uint64, c_int64],
    "mdg_pool_wait_terminated": [c_uint64, c_int64],
    "mdg_pool_next": [c_uint64, c_int64, c_void_p],
    "mdg_pool_fd": [c_uint64],
    "mdg_fd": [c_uint64],
    "mdg_set_weight": [c_uint64, c_char_p, c_uint32],
    "mdg_set_spin": [c_uint64, c_uint64],
}
_LONG = {
    "mdg_why": [c_uint64, c_char_p, c_size_t],
    "mdg_address": [c_uint64, c_char_p, c_size_t],
    "mdg_read": [c_uint64, c_void_p, c_size_t, c_int64],
    "mdg_write": [c_uint64, c_void_p, c_size_t, c_int64],
    "mdg_cancel": [c_uint64],
    "mdg_port_changes": [c_uint64, c_char_p, c_size_t],
    "mdg_incoming_from": [c_uint64, c_char_p, c_size_t],
    "mdg_get_text": [c_uint64, c_char_p, c_size_t],
    "mdg_lossy_send": [c_uint64, c_int, c_void_p, c_size_t, c_int64, c_int64],
    "mdg_lossy_receive": [c_uint64, c_void_p, c_size_t, c_int64, POINTER(c_uint32), POINTER(c_uint32), c_size_t],
    "mdg_mailbox_list": [c_uint64, c_void_p, c_void_p, c_size_t],
    "mdg_mailbox_source": [c_uint64, c_uint64, c_char_p, c_size_t],
    "mdg_mailbox_holder": [c_uint64, c_uint64, c_char_p, c_size_t],
    "mdg_mailbox_changes": [c_uint64, c_char_p, c_size_t],
    "mdg_buffer_data": [c_uint64, POINTER(c_void_p)],
    "mdg_pool_id": [c_uint64],
    "mdg_pool_members": [c_uint64, c_void_p, c_size_t],
    "mdg_pool_location": [c_uint64, c_int64, c_char_p, c_size_t],
    "mdg_pool_blob": [c_uint64, c_int64, c_void_p, c_size_t],
    "mdg_pool_elect": [c_uint64, c_char_p, c_int, c_int64, POINTER(c_uint64)],
    "mdg_pool_winner": [c_uint64, c_char_p, c_int64],
    "mdg_pool_get": [c_uint64, c_int64, c_char_p, c_void_p, c_size_t],
    "mdg_turn": [c_uint64, c_int64],
    "mdg_work_done": [c_uint64, c_char_p],
}
_TEXT = {"mdg_strerror": [c_int], "mdg_error_text": [], "mdg_version": []}


def _places() -> list[str]:
    """Where the library may be: what is named, the wheel's own, what this tree was built to, what is installed."""
    here = Path(__file__).resolve()
    built = [Path(os.environ.get("CARGO_TARGET_DIR", parent / "target")) for parent in here.parents if (parent / "Cargo.toml").exists()]
    files = [here.parent / "native" / NAME, *(folder / "release" / NAME for folder in built)]
    return [*filter(None, [os.environ.get("MADRIGAL_LIBRARY")]), *(str(file) for file in files if file.exists()), NAME]


def _load() -> ctypes.CDLL:
    places = _places()
    try:
        library = ctypes.CDLL(places[0])
    except OSError as error:
        raise ImportError(f"cannot load {places[0]}: {error}: set MADRIGAL_LIBRARY, or run `make build`") from error
    for result, functions in ((c_int, _INT), (c_int64, _LONG), (c_char_p, _TEXT)):
        for name, arguments in functions.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, result
    return library


lib = _load()


def opened(function: Callable[..., int], *arguments: object) -> tuple[int, int]:
    """Calls what puts a handle into its last argument: the code, and the handle."""
    handle = c_uint64()
    return function(*arguments, byref(handle)), handle.value


def text(function: Callable[..., int], handle: int) -> tuple[int, str]:
    """Calls what copies a text: the code, and the text."""
    room = 4096
    while True:
        buffer = ctypes.create_string_buffer(room)
        length = function(handle, buffer, room)
        if length < room:
            return length, buffer.value.decode()
        room = length + 1
