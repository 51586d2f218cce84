"""Copies of states in the memory of a host, outside of the processes that compute: they outlive these."""

import math
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxpp.healing.messages import Channel, Listener


class Part(NamedTuple):
    """What one process had of a state.

    generation, step: which state; owner: the number of the process in that generation.
    """

    generation: int
    step: int
    owner: int


class Piece(NamedTuple):
    """A block of one array of a state.

    leaf: the number of the array; dtype: its name; bytes: those of an element.
    start, shape: where in the array it begins, and how large it is.
    """

    leaf: int
    dtype: str
    bytes: int
    start: Sequence[int]
    shape: Sequence[int]

    @property
    def size(self) -> int:
        """Its bytes."""
        return self.bytes * math.prod(self.shape)


class Store:
    """Holds the parts of states that processes give it, until it is told to drop them.

    host, secret: as of a `Listener`.
    """

    def __init__(self, host: str, secret: bytes) -> None:
        self._parts: dict[Part, list[tuple[Piece, bytearray]]] = {}
        self._lock = threading.Lock()
        self.address = Listener(host, secret, self._serve).address

    def drop_before(self, generation: int, step: int) -> None:
        """Forget all states before this one."""
        with self._lock:
            kept = {part: held for part, held in self._parts.items() if part[:2] >= (generation, step)}
            self._parts = kept

    def _serve(self, channel: Channel) -> None:
        while True:
            message = channel.receive()
            part = Part(*message["part"])
            if "put" in message:
                pieces = [Piece(*each) for each in message["put"]]
                held = [(piece, channel.receive_array(piece.size)) for piece in pieces]
                with self._lock:
                    self._parts[part] = held
                channel.send(kept=True)
            elif "piece" in message:
                channel.send_array(memoryview(self._held(part)[message["piece"]][1]))
            else:
                channel.send(pieces=[piece for piece, _ in self._held(part)])

    def _held(self, part: Part) -> list[tuple[Piece, bytearray]]:
        with self._lock:
            return self._parts.get(part, [])


def put(channel: Channel, part: Part, pieces: Sequence[tuple[Piece, memoryview]]) -> None:
    """Give a part to the Store at the other end, and wait until it has it."""
    channel.send(part=part, put=[piece for piece, _ in pieces])
    for _, data in pieces:
        channel.send_array(data)
    channel.receive()


def pieces_of(channel: Channel, part: Part) -> list[Piece]:
    """What the Store at the other end has of a part."""
    channel.send(part=part)
    return [Piece(*each) for each in channel.receive()["pieces"]]


def get(channel: Channel, part: Part, number: int, piece: Piece) -> Any:
    """The bytes of a piece, by its number in its part."""
    channel.send(part=part, piece=number)
    return channel.receive_array(piece.size)
