"""What the launcher and the fork server say to each other: length-prefixed pickles over a Unix socket. No torch."""

from __future__ import annotations

import pickle
import socket
import struct
from dataclasses import dataclass

from nanprobe.plan import StageRequest

_LENGTH = struct.Struct("!I")


@dataclass(frozen=True, slots=True)
class Ready:
    """The server has loaded torch and takes requests."""

    seconds: float  # how long loading took


@dataclass(frozen=True, slots=True)
class NotReady:
    """The server could not load what every stage needs, and ends."""

    message: str


@dataclass(frozen=True, slots=True)
class Start:
    """Run one stage; its output goes to the file descriptor that travels with the message."""

    request: StageRequest


@dataclass(frozen=True, slots=True)
class Signal:
    """Send a signal to the running stage: to its own process, or to its whole group."""

    number: int
    group: bool = True


@dataclass(frozen=True, slots=True)
class Started:
    """The stage runs."""

    pid: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The stage's process and all it started are gone; `status` is negative for a signal, as in subprocess."""

    status: int


Message = Ready | NotReady | Start | Signal | Started | Ended


def send(connection: socket.socket, message: Message, descriptor: int | None = None) -> None:
    """Send one message, and a file descriptor with it where one is given."""
    body = pickle.dumps(message)
    head = _LENGTH.pack(len(body))
    if descriptor is None:
        connection.sendall(head)
    else:
        socket.send_fds(connection, [head], [descriptor])
    connection.sendall(body)


def receive(connection: socket.socket) -> tuple[Message, int | None]:
    """The next message, and the file descriptor that came with it. Raises EOFError when the other side is gone."""
    head, descriptors, _, _ = socket.recv_fds(connection, _LENGTH.size, 1)
    if len(head) < _LENGTH.size:
        head += _receive_exactly(connection, _LENGTH.size - len(head))
    message: Message = pickle.loads(_receive_exactly(connection, *_LENGTH.unpack(head)))
    return message, descriptors[0] if descriptors else None


def _receive_exactly(connection: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = connection.recv(size)
        if not part:
            raise EOFError("the other side closed the connection")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
