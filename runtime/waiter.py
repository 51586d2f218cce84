"""A wait for an array that Ctrl-C and a dead peer can end."""

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from jaxpp.runtime.wire import TICK


class Waiter:
    """Waits in a thread of its own: JAX's waits have no end and hear no Ctrl-C, those of a lock have, and do."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=_serve, args=(self._requests,), name="jaxpp-wait", daemon=True)
        self._thread.start()

    def wait(self, array: Any, look: Callable[[float], None]) -> Exception | None:
        """Wait until the array is there; returns what it raised. Every TICK calls `look` with the seconds so far."""
        done = threading.Lock()
        done.acquire()
        outcome: list[Exception | None] = []
        self._requests.put((array, outcome, done))
        start = time.monotonic()
        while not done.acquire(timeout=TICK):
            look(time.monotonic() - start)
        return outcome[0]

    def abandon(self) -> None:
        """Leave the thread to a wait that was interrupted, and take another. Python can't end with one that waits."""
        self._requests.put(None)
        self._thread.join(1.0)
        self._start()


def _serve(requests: "queue.SimpleQueue[Any]") -> None:
    while (request := requests.get()) is not None:
        array, outcome, done = request
        outcome.append(failure(array))
        del request, array  # an array must not live until the next wait
        done.release()


def failure(array: Any) -> Exception | None:
    """What a wait for the array raises; None when it has arrived."""
    try:
        array.block_until_ready()
    except Exception as error:
        return error
    return None
