"""Madrigal: streams and messages between processes, by the best path there is.

A program that waits in calls opens a `Runtime`; one of asyncio's awaits `connect` and `listen`. A guide is docs/python.md.
"""

from ._library import lib as _lib
from .aio import Server, Transport, connect, create_connection, create_server, listen
from .circuit import ADDRESS, ANY, ANY_TAG, Circuit, Packing, Unpacking
from .errors import (ArgumentError, Busy, Closed, Denied, Error, Forked, Gone, Lost, Mismatch, Refused, Reset, TimedOut, Unreachable)
from .launched import world
from .lossy import Fate, LossyAcceptor, LossyLink, LossyMessage, MessageClass
from .mailbox import Buffer, Draft, Header, Mailbox
from .pools import Pool, PoolEvent
from .ports import Incoming, Message, ReceivePort, SendPort
from .runtime import Acceptor, Link, Runtime

__version__ = _lib.mdg_version().decode()
__all__ = [
    "ADDRESS", "ANY", "ANY_TAG", "Acceptor", "ArgumentError", "Buffer", "Busy", "Circuit", "Closed", "Denied", "Draft", "Error", "Fate", "Forked",
    "Gone", "Header", "Incoming", "Link", "LossyAcceptor", "LossyLink", "LossyMessage", "Lost", "Mailbox", "Message", "MessageClass", "Mismatch",
    "Packing", "Pool", "PoolEvent", "ReceivePort", "Refused", "Reset", "Runtime", "SendPort", "Server", "TimedOut", "Transport", "Unpacking",
    "Unreachable", "connect",
    "create_connection", "create_server", "listen", "world",
]
