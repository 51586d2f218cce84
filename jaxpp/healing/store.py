"""Copies of states in the memory of a host, outside of the processes that compute: they outlive these."""

import math
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxpp.healing.messages import Listener, MessageConnection


class StatePart(NamedTuple):
    """What one process had of a state.

    generation, step: which state; owner: the number of the process in that generation.
    """

    generation: int
    step: int
    owner: int


class Shard(NamedTuple):
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
        self._parts: dict[StatePart, list[tuple[Shard, bytearray]]] = {}
        self._lock = threading.Lock()
        self.address = Listener(host, secret, self._serve).address

    def drop_before(self, generation: int, step: int) -> None:
        """Forget all states before this one."""
        with self._lock:
            kept = {part: held for part, held in self._parts.items() if part[:2] >= (generation, step)}
            self._parts = kept

    def _serve(self, connection: MessageConnection) -> None:
        while True:
            message = connection.receive(may_rest=True)
            part = StatePart(*message["part"])
            if "put" in message:
                shards = [Shard(*each) for each in message["put"]]
                held = [(shard, connection.receive_array(shard.size)) for shard in shards]
                with self._lock:
                    self._parts[part] = held
                connection.send(kept=True)
            elif "shard" in message:
                held = self._held(part)
                if message["shard"] >= len(held):
                    raise EOFError("it was dropped")
                connection.send_array(memoryview(held[message["shard"]][1]))
            else:
                connection.send(shards=[shard for shard, _ in self._held(part)])

    def _held(self, part: StatePart) -> list[tuple[Shard, bytearray]]:
        with self._lock:
            return self._parts.get(part, [])


def put(connection: MessageConnection, part: StatePart, shards: Sequence[tuple[Shard, memoryview]]) -> None:
    """Give a part to the Store at the other end, and wait until it has it."""
    connection.send(part=part, put=[shard for shard, _ in shards])
    for _, data in shards:
        connection.send_array(data)
    connection.receive()


def shards_of(connection: MessageConnection, part: StatePart) -> list[Shard]:
    """What the Store at the other end has of a part."""
    connection.send(part=part)
    return [Shard(*each) for each in connection.receive()["shards"]]


def get(connection: MessageConnection, part: StatePart, number: int, shard: Shard) -> Any:
    """The bytes of a shard, by its number in its part."""
    connection.send(part=part, shard=number)
    return connection.receive_array(shard.size)
