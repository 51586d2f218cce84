"""Ends the waits of this process when another process is gone, or ends this process if the waits can't be ended."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from jaxpp import _jobs
from jaxpp._system import tell
from jaxpp.runtime.processes.transfer import PullTransport
from jaxpp.runtime.processes.waiting import TransferError, Waiting, in_a_line, place
from jaxpp.runtime.processes.watchdog import Loss, Watchdog
from jaxpp.runtime.processes.wire import TICK

SETTLE = 0.5
"""Seconds that a failed transfer waits for the news that its peer is dead."""

ENDED = 60.0
"""Seconds that a wait for a process goes on when that has ended: what it offered before may still be on its way."""

ENDED_MESSAGE = 1.0
"""Seconds that a wait for a message goes on when its sender has ended."""

FAREWELL = 300.0
"""Seconds that a process which ends waits for the others to end too, as JAX's own barrier does."""

START = 2.0
"""Seconds that JAX's backends may go on starting after a loss: their start waits for all processes, in C++."""

LAST = 10.0
"""Seconds after which this module cuts a hang short: at exit, where process 0 lets other survivors leave first, and in
a step in XLA after the failure of a process that shares a mesh."""


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
    """Watches the other processes. When one is gone, it ends the waits for it, or this process where it can't.

    Like the transport and the watchdog, it knows nothing of `jax.distributed`.

    me: the number of this process; host: the address to listen at.
    secret, seconds: as for Watchdog; progress: seconds that it waits for a process that lives.
    """

    def __init__(self, me: int, host: str, secret: bytes, seconds: float, progress: float = 1800.0) -> None:
        self.me, self.host, self._pid, self.progress = me, host, os.getpid(), progress
        self.patience = min(seconds, 30.0)
        """Seconds that a step may go on after a loss, if it waits in a program of XLA, where nothing can end a wait."""
        self._transport: PullTransport | None = None
        self._leaving = False
        self._wired: set[int] = set()
        self._awaited: tuple[float, Sequence[int]] = 0.0, ()
        """The processes that this one waits for, and when it last looked for them."""
        pause = min(progress / 4, 5.0)
        self.watchdog = Watchdog(me, secret, host, seconds, self._on_loss, self._state, pause)

    def attach(self, transport: PullTransport) -> None:
        """End the waits of this transport from now on, and send its small values over wires."""
        self._transport = transport
        transport.watch, transport.failed = self.watch, self.settle
        transport.on_break = partial(self.watchdog.goodbye, is_stuck=True)
        self._wire()

    def connect(self, addresses: Mapping[int, str], seconds: float, look: Callable[[], None]) -> None:
        """Watch these peers, at these addresses of their watchdogs.

        All of them call this. Raises ConnectionError as `Watchdog.connect` does.
        """
        self.watchdog.connect(addresses, seconds, look)
        self._wire()

    def _wire(self) -> None:
        if self._transport is not None:
            for peer in self.watchdog.wires.keys() - self._wired:
                self._transport.connect_wire(peer, *self.watchdog.wires[peer])
                self._wired.add(peer)

    def look(self, waiting: Waiting, seconds: float) -> None:
        """Called during waits.

        Raises PeerError when any peer is dead, when the one that is waited for has ended, or when one that shares a
        mesh with this process failed in a step: collectives then wait for it.
        """
        ended = ENDED_MESSAGE if waiting.is_message else ENDED
        for loss in self.watchdog.lost:
            is_needed = loss.is_stuck and any({self.me, loss.peer} <= {*owners} for owners in waiting.owners)
            if not loss.ended or is_needed or (loss.peer == waiting.peer and seconds > ended):
                raise PeerError(loss, waiting)

    def watch(self, waiting: Waiting, seconds: float) -> None:
        """Called during waits. Raises as `look`, and TransferError when a live process has not come in time."""
        self.look(waiting, seconds)
        self._awaited = time.monotonic(), self._needed_for(waiting)
        if seconds > self.progress:
            late = [f"process {peer} {self._last_seen(peer)}" for peer in self._late()]
            where = "this process" if waiting.mesh is None else f"mesh {waiting.mesh}"
            raise TransferError(
                f"{where} waited {self.progress:g} s (JAXPP_PROGRESS_SECONDS) for {waiting.what}: {', '.join(late)}"
            )

    def _needed_for(self, waiting: Waiting) -> Sequence[int]:
        """Returns the processes that a wait is for: in a collective, all that share the mesh."""
        owners = waiting.owners[waiting.mesh] if waiting.mesh is not None and waiting.owners else ()
        return sorted({*owners} - {self.me}) if {waiting.peer, self.me} <= {*owners} else [waiting.peer]

    def _late(self) -> Sequence[int]:
        """Returns the processes that keep others waiting, and wait for none; if all wait, those that this one needs."""
        needed = list(self._awaited[1])
        found = [*needed]
        for peer in found:  # grows
            found += [each for each in self.watchdog.heard.get(peer, {}).get("awaits", ()) if each not in found]
        return [peer for peer in found if peer != self.me and not self._awaits(peer)] or needed

    def _awaits(self, peer: int) -> bool:
        return bool(self.watchdog.heard.get(peer, {}).get("awaits"))

    def _last_seen(self, peer: int) -> str:
        at = self.watchdog.heard.get(peer, {}).get("at")
        return f"lives, and was last seen at {at}" if at else "lives, and has not come"

    def _state(self) -> Mapping[str, Any]:
        """Returns where this process is, and the processes that it waits for."""
        when, awaited = self._awaited
        awaits = list(awaited[:64]) if time.monotonic() - when < 10 * TICK else []
        return {"at": place(threading.main_thread().ident or 0)[-500:], "awaits": awaits}

    def first_loss(self) -> Loss | None:
        """The peer that is gone: one that died or froze before one that has ended."""
        return min(self.watchdog.lost, key=lambda loss: loss.ended, default=None)

    def settle(self, waiting: Waiting) -> None:
        """Called when a transfer has failed: raises PeerError if it did because a peer is dead."""
        self.watchdog.wait_for_loss(SETTLE)
        self.look(waiting, 0.0)

    def leave(self) -> None:
        """At exit: say goodbye, and wait until the others have said it, so that they get what they fetch from here.

        JAX's own farewell waits for all processes. This process skips it when another one is dead or frozen, because
        JAX would abort this process then; and when one has failed before its first step, because the processes that
        wait for its devices end without a farewell; and when a transfer failed that a thread of XLA may still wait for:
        that must not come back while Python ends. Process 0 then waits a while until the others have left: they are
        aborted when it ends.

        A forked child does none of this: the others don't know it.
        """
        if os.getpid() != self._pid:
            _jobs.skip_farewell()
            return
        self._leaving = True
        last: BaseException | None = getattr(sys, "last_value", None)
        error = in_a_line(last) if last is not None else ""
        if self._transport is not None:
            self._transport.close(error)
        is_stuck = self._transport is not None and self._transport.is_stuck
        skips = is_stuck or (bool(error) and self._transport is None)
        self.watchdog.goodbye(error, skips)
        try:
            # Where collectives are stuck in others too, its end is what ends these: then they may raise an error.
            seconds = LAST / 2 if is_stuck else min(FAREWELL, self.progress)
            together = self.watchdog.wait_for_goodbyes(seconds)
            if skips or any(loss.is_stuck for loss in self.watchdog.lost):
                together = False
            if not together and self.me == 0:
                self.watchdog.wait_until_alone(LAST)
        except KeyboardInterrupt:
            together = False
        if self._transport is not None:
            self._transport.finish(1.0)
        if not together:
            _jobs.skip_farewell()
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(int(LAST))  # ends waits inside of XLA for a dead peer

    def retire(self) -> None:
        """Say goodbye in the middle of a job, and watch nobody any more."""
        self._leaving = True
        self.watchdog.goodbye("")
        if self._transport is not None:
            self._transport.end()
        self.watchdog.close()

    def _on_loss(self, loss: Loss) -> None:
        # At once: when process 0 dies, JAX aborts this process before an exception can be printed.
        running = {
            step
            for step, partners in (self._transport.running.copy() if self._transport is not None else {}).items()
            if not loss.ended or (loss.is_stuck and loss.peer in partners)
        }
        if running:
            timer = threading.Timer(self.patience if not loss.ended else LAST, self._give_up, [loss, running])
            timer.daemon = True
            timer.start()
        if self._transport is None:
            threading.Thread(target=self._see_jax_start, args=[loss], name="jaxpp-start", daemon=True).start()
        if not loss.ended or (loss.has_failed and not self._leaving):
            tell(str(loss))

    def _see_jax_start(self, loss: Loss) -> None:
        """End this process if it waits for the lost one to list its devices: nothing can interrupt that wait."""
        begun: float | None = None
        while self._transport is None and not self._leaving:
            now = time.monotonic()
            begun = (begun or now) if _jobs.is_backend_starting() else None
            if begun is not None and now - begun > START:
                tell(f"{loss}; JAX waits for its devices here, so this process ends")
                self.watchdog.goodbye(f"PeerError: {loss}", is_stuck=True)
                if self.me == 0:
                    self.watchdog.wait_until_alone(START)
                os._exit(1)
            time.sleep(START / 20)

    def _give_up(self, loss: Loss, running: set[object]) -> None:
        """End the process when a step that ran at the loss still runs: its thread is inside a collective of XLA."""
        if self._transport is not None and running & self._transport.running.keys():
            tell(f"{loss}; this process is in a program of XLA that waits for it, and ends")
            os._exit(1)
