"""The group of all processes that one launcher started: mpiexec of any MPI, `madrigal run`, or srun. No MPI is needed.

The launcher carries the nodes' addresses: by PMI-1 (a line protocol on the descriptor PMI_FD, of MPICH's mpiexec, Intel MPI's and
`madrigal run`), or by PMIx (libpmix, of Open MPI's mpirun and of Slurm). A process that nobody launched is a group of one.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
from ctypes import POINTER, byref, c_char, c_char_p, c_int, c_size_t, c_ubyte, c_uint16, c_uint32, c_void_p
from typing import Callable, Optional

from .circuit import Circuit
from .runtime import Runtime

# The name of what each rank tells the others.
_KEY = "madrigal.address"


def world(runtime: Optional[Runtime] = None, tags: bool = False) -> Circuit:
    """Opens a Circuit and joins it with those of all processes of this job: its `rank` and `size` are the launcher's.

    Every process of the job calls it, once, and waits for the others. A program that uses an MPI in the same processes exchanges addresses
    by that instead (`Circuit.address`, then MPI's allgather): a launcher speaks to one library. OSError if the launcher does not answer as
    it should.
    """
    circuit = Circuit(runtime if runtime is not None else Runtime(), tags)
    circuit.join(_exchange()(circuit.address))
    return circuit


def _exchange() -> Callable[[bytes], list[bytes]]:
    if "PMI_FD" in os.environ:
        return _by_pmi
    if "PMIX_NAMESPACE" in os.environ:
        return _by_pmix
    return lambda own: [own]


def _by_pmi(own: bytes) -> list[bytes]:
    rank, size = int(os.environ["PMI_RANK"]), int(os.environ["PMI_SIZE"])
    # The descriptor is the launcher's to close: a program that execs may use it again.
    with os.fdopen(os.dup(int(os.environ["PMI_FD"])), "r+b", buffering=0) as wire:
        def ask(request: str, wanted: str) -> dict[str, str]:
            wire.write(f"cmd={request}\n".encode())
            line = b""
            while not line.endswith(b"\n"):
                part = wire.readline()
                if not part:
                    raise ConnectionResetError("the launcher has closed PMI_FD")
                line += part
            answer = dict(pair.partition("=")[::2] for pair in line.decode().split())
            if answer.get("cmd") != wanted or answer.get("rc", "0") != "0":
                raise OSError(f"the launcher answered `{line.decode().strip()}` to `{request}`")
            return answer

        ask("init pmi_version=1 pmi_subversion=1", "response_to_init")
        space = ask("get_my_kvsname", "my_kvsname")["kvsname"]
        ask(f"put kvsname={space} key={_KEY}.{rank} value={own.hex()}", "put_result")
        ask("barrier_in", "barrier_out")
        addresses = [ask(f"get kvsname={space} key={_KEY}.{node}", "get_result")["value"] for node in range(size)]
        # Nobody ends while others still ask.
        ask("barrier_in", "barrier_out")
        ask("finalize", "finalize_ack")
    return [bytes.fromhex(address) for address in addresses]


# PMIx, from pmix_common.h: what has not changed from version 2 to 5.
_GLOBAL, _STRING, _UINT32, _WILDCARD = 3, 3, 14, 2 ** 32 - 2
_JOB_SIZE = b"pmix.job.size"


class _Process(ctypes.Structure):
    """pmix_proc_t"""

    _fields_ = [("nspace", c_char * 256), ("rank", c_uint32)]


class _Value(ctypes.Structure):
    """pmix_value_t, with room for whatever its union grows to."""

    class _Data(ctypes.Union):
        _fields_ = [("string", c_char_p), ("number", c_uint32), ("room", c_ubyte * 64)]
    _fields_ = [("type", c_uint16), ("data", _Data)]
    _anonymous_ = ("data",)


def _pmix() -> ctypes.CDLL:
    name = ctypes.util.find_library("pmix") or "libpmix.so.2"
    try:
        library = ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise OSError(f"the launcher speaks PMIx, and {name} cannot be loaded: {error}") from error
    for function, arguments in {
        "PMIx_Init": [POINTER(_Process), c_void_p, c_size_t],
        "PMIx_Put": [c_ubyte, c_char_p, POINTER(_Value)],
        "PMIx_Commit": [],
        "PMIx_Fence": [POINTER(_Process), c_size_t, c_void_p, c_size_t],
        "PMIx_Get": [POINTER(_Process), c_char_p, c_void_p, c_size_t, POINTER(POINTER(_Value))],
        "PMIx_Finalize": [c_void_p, c_size_t],
        "PMIx_Error_string": [c_int],
    }.items():
        getattr(library, function).argtypes = arguments
    library.PMIx_Error_string.restype = c_char_p
    return library


def _by_pmix(own: bytes) -> list[bytes]:
    pmix = _pmix()

    def call(function: str, *arguments: object) -> None:
        code = getattr(pmix, function)(*arguments)
        if code:
            raise OSError(f"{function}: {pmix.PMIx_Error_string(code).decode()}")

    def get(process: _Process, key: bytes, kind: int) -> _Value:
        value = POINTER(_Value)()
        call("PMIx_Get", byref(process), key, None, 0, byref(value))
        if value.contents.type != kind:
            raise OSError(f"PMIx_Get of {key.decode()}: a value of type {value.contents.type}, not {kind}")
        # Not freed: once in a process, and only PMIx's macros know how.
        return value.contents

    me = _Process()
    call("PMIx_Init", byref(me), None, 0)
    size = get(_Process(me.nspace, _WILDCARD), _JOB_SIZE, _UINT32).number
    mine = _Value(type=_STRING)
    mine.string = own.hex().encode()
    call("PMIx_Put", _GLOBAL, _KEY.encode(), byref(mine))
    call("PMIx_Commit")
    call("PMIx_Fence", None, 0, None, 0)
    addresses = [get(_Process(me.nspace, node), _KEY.encode(), _STRING).string for node in range(size)]
    # Nobody ends while others still ask.
    call("PMIx_Fence", None, 0, None, 0)
    call("PMIx_Finalize", None, 0)
    return [bytes.fromhex(address.decode()) for address in addresses]
