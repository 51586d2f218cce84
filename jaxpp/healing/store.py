"""Copies of states in the memory of a host, outside of the processes that compute, so that they survive these."""

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jaxpp.healing.messages import Listener, MessageConnection


class FullError(Exception):
    """The error for a part for which a Store has no memory."""


class StatePart(NamedTuple):
    """The part of a state that one process had.

    generation, step: the state.
    owner, owners: the index of the process, and the number of processes.
    """

    generation: int
    step: int
    owner: int
    owners: int


class Shard(NamedTuple):
    """A block of an array.

    leaf: the array's index in the state.
    dtype, bytes: the type and size of an element.
    start, shape: the block's place in the array.
    """

    leaf: int
    dtype: str
    bytes: int
    start: Sequence[int]
    shape: Sequence[int]

    @property
    def size(self) -> int:
        """The bytes of the shard."""
        return self.bytes * math.prod(self.shape)


class Store:
    """A server that holds parts of states until `drop_before`.

    host, secret: see `Listener`.
    serve: called with each connection for another use, and its first message.
    """

    def __init__(
        self, host: str, secret: bytes, serve: Callable[[MessageConnection, dict[str, Any]], None] | None = None
    ) -> None:
        self._serve_other = serve
        self._parts: dict[StatePart, list[tuple[Shard, bytearray]]] = {}
        self._lock = threading.Lock()
        self.address = Listener(host, secret, self._serve).address

    def drop_before(self, generation: int, step: int) -> None:
        """Forgets all states before this one."""
        with self._lock:
            kept = {part: held for part, held in self._parts.items() if part[:2] >= (generation, step)}
            self._parts = kept

    def parts(self) -> list[StatePart]:
        """Returns the parts that are held."""
        with self._lock:
            return list(self._parts)

    def _serve(self, connection: MessageConnection) -> None:
        while True:
            message = connection.receive(may_rest=True)
            if "part" not in message and self._serve_other is not None:
                self._serve_other(connection, message)
                return
            part = StatePart(*message["part"])
            if "put" in message:
                shards = [Shard(*each) for each in message["put"]]
                try:
                    room = [bytearray(shard.size) for shard in shards]
                except MemoryError:
                    connection.send(refused=f"it has no memory for {sum(shard.size for shard in shards)} bytes")
                    continue
                connection.send(kept=False)
                for data in room:
                    connection.receive_into(memoryview(data))
                with self._lock:
                    self._parts[part] = list(zip(shards, room, strict=True))
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
    """Sends a part to the Store at the other end, and waits until the Store has it. Raises FullError if it can't."""
    connection.send(part=part, put=[shard for shard, _ in shards])
    if "refused" in (answer := connection.receive()):
        raise FullError(answer["refused"])
    for _, data in shards:
        connection.send_array(data)
    connection.receive()


def shards_of(connection: MessageConnection, part: StatePart) -> list[Shard]:
    """Returns the shards of a part that the Store at the other end has."""
    connection.send(part=part)
    return [Shard(*each) for each in connection.receive()["shards"]]


def get(connection: MessageConnection, part: StatePart, number: int, shard: Shard) -> Any:
    """Returns the bytes of a shard, by its index in its part."""
    connection.send(part=part, shard=number)
    return connection.receive_array(shard.size)
