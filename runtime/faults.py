"""What a process does when another one that it works with dies, freezes or ends: its waits end, and so can it."""

import os
import signal
import sys
import threading
from collections.abc import Mapping

from jaxpp import _compat
from jaxpp.runtime.transfer import TransferError, Transport, Waiting
from jaxpp.runtime.watchdog import Loss, Watchdog

SETTLE = 0.5
"""Seconds in which a failed transfer may turn out to be a dead peer's."""

ENDED = 5.0
"""Seconds that a wait for a process that has ended goes on: what that offered before may still be on its way."""

FAREWELL = 300.0
"""Seconds that a process which ends waits for the others to end too, as JAX's own barrier does."""

LAST = 10.0
"""Seconds that process 0 waits for the other survivors to leave, and that leaving takes at most."""


class PeerError(TransferError):
    """A process that this one works with is gone.

    loss: which one, and how it went.
    """

    def __init__(self, loss: Loss, waiting: Waiting) -> None:
        self.loss = loss
        meshes = [str(mesh) for mesh, owners in enumerate(waiting.owners) if loss.peer in owners]
        what = f"mesh{'es' if len(meshes) > 1 else ''} {', '.join(meshes)} on {loss}" if meshes else str(loss)
        where = "this process" if waiting.mesh is None else f"mesh {waiting.mesh}"
        super().__init__(f"{what}; {where} waited for {waiting.what}")


class Guard:
    """Ends the waits of a transport when one of its peers is gone, and its process as well as that can be done.

    Like the transport and the watchdog, it knows nothing of `jax.distributed`.

    transport: what waits.
    secret, seconds: as for Watchdog.
    """

    def __init__(self, transport: Transport, secret: bytes, seconds: float) -> None:
        self.transport = transport
        self.patience = min(seconds, 30.0)
        """Seconds that a step which doesn't wait here, but in a program of XLA, may go on after a loss."""
        self._connected: set[int] = set()
        self.watchdog = Watchdog(transport.me, secret, transport.host, seconds, self._on_loss)
        transport.watch, transport.failed = self.look, self.settle

    def connect(self, addresses: Mapping[int, str]) -> None:
        """Watch these peers, at these addresses of their watchdogs, and send them small values over wires.

        All of them call this. Raises ConnectionError as `Watchdog.connect` does.
        """
        self.watchdog.connect(addresses)
        for peer in addresses.keys() - self._connected:
            self.transport.connect_wire(peer, *self.watchdog.wires[peer])
            self._connected.add(peer)

    def look(self, waiting: Waiting, seconds: float) -> None:
        """Called during waits. Raises PeerError when any peer is dead, or the one that is waited for has ended."""
        for loss in self.watchdog.lost:
            if not loss.ended or (loss.peer == waiting.peer and seconds > ENDED):
                raise PeerError(loss, waiting)

    def settle(self, waiting: Waiting) -> None:
        """Called when a transfer has failed: raises PeerError if it did because a peer is dead."""
        self.watchdog.wait_for_loss(SETTLE)
        self.look(waiting, 0.0)

    def leave(self) -> None:
        """At exit: say goodbye, and wait until the others did, so that they get what they still fetch from here.

        Where one is dead or frozen, what JAX does at exit would wait for it, and then abort; it is left out. Process 0
        then waits a little, as its end aborts the others.
        """
        self.transport.close()
        error = getattr(sys, "last_value", None)
        self.watchdog.goodbye("" if error is None else type(error).__name__)
        try:
            together = self.watchdog.wait_for_goodbyes(FAREWELL)
            if not together and self.transport.me == 0:
                self.watchdog.wait_until_alone(LAST)
        except KeyboardInterrupt:
            together = False
        self.transport.finish(1.0)
        if not together:
            _compat.skip_farewell()
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(int(LAST))  # whatever in XLA still waits for a dead peer ends here

    def _on_loss(self, loss: Loss) -> None:
        # At once: when process 0 dies, JAX aborts this process before an exception can be printed.
        _say(str(loss))
        timer = threading.Timer(self.patience, self._give_up, [loss, set(self.transport.running)])
        timer.daemon = True
        timer.start()

    def _give_up(self, loss: Loss, running: set[object]) -> None:
        """End the process when a step that ran at the loss still runs: its thread is inside a collective of XLA."""
        if running & self.transport.running:
            _say(f"{loss}; this process is in a program of XLA that waits for it, and ends")
            os._exit(1)


def _say(message: str) -> None:
    print(f"jaxpp: {message}", file=sys.stderr, flush=True)
