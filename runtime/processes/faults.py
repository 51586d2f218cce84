"""Ends the waits of this process when another process is gone, or ends this process if a wait cannot end."""

import dataclasses
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
from jaxpp.runtime.processes.autopsy import STILL, ProcessState, explain, is_hang
from jaxpp.runtime.processes.reporting import ANSWER, unanswered
from jaxpp.runtime.processes.transfer import PullTransport
from jaxpp.runtime.processes.waiting import TransferError, WaitFor, Waiting, in_a_line, own_state
from jaxpp.runtime.processes.watchdog import Loss, Watchdog
from jaxpp.runtime.processes.wire import TICK

SETTLE = 0.5
"""Seconds that a failed transfer waits for the news that its peer is dead."""

ENDED = 60.0
"""Seconds that a wait for an array goes on after its sender has ended. The array may still arrive."""

ENDED_MESSAGE = 1.0
"""Seconds that a wait for a message goes on after its sender has ended."""

FAREWELL = 300.0
"""Seconds that a process waits at exit for the others to end too, as JAX's own barrier does."""

START = 2.0
"""Seconds that JAX's backends may go on starting after a loss. Their start waits for all processes, in C++."""

LAST = 10.0
"""Seconds after which this module ends a hang. At exit, process 0 lets other survivors leave first for as long.

In a step, the hang is a wait in XLA for a process that shares a mesh and has failed."""


LOST = "see its own output; then start the job again from a checkpoint"


class PeerError(TransferError):
    """A process that this one works with is gone.

    loss: the process, and how it was lost.
    """

    def __init__(self, loss: Loss, waiting: Waiting) -> None:
        self.loss = loss
        meshes = [str(mesh) for mesh, owners in enumerate(waiting.owners) if loss.peer in owners]
        what = f"mesh{'es' if len(meshes) > 1 else ''} {', '.join(meshes)} on {loss}" if meshes else str(loss)
        where = "this process" if waiting.mesh is None else f"mesh {waiting.mesh}"
        super().__init__(f"{what}; {where} waited for {waiting.what}")


class Guard:
    """A guard, which watches the other processes. It ends the waits for a lost process, or ends this process.

    Like the transport and the watchdog, the guard does not depend on `jax.distributed`.

    Args:
        me: the number of this process.
        host: the address to listen at.
        secret: as for `Watchdog`.
        seconds: as for `Watchdog`.
        progress: the seconds that this process waits for a live process.
    """

    def __init__(self, me: int, host: str, secret: bytes, seconds: float, progress: float = 1800.0) -> None:
        self.me, self.host, self._pid, self.progress = me, host, os.getpid(), progress
        self.patience = min(seconds, 30.0)
        """Seconds that a step may go on after a loss. Nothing can end a wait in a program of XLA."""
        self._transport: PullTransport | None = None
        self._leaving = False
        self._wired: set[int] = set()
        self._is_told = False
        """Whether the hang that lasts was reported."""
        pause = min(progress / 4, 5.0)
        self.watchdog = Watchdog(me, secret, host, seconds, self._on_loss, self._state, pause)

    def attach(self, transport: PullTransport) -> None:
        """Begins to end this transport's waits after a loss, and connects the wires for its small values."""
        self._transport = transport
        transport.watch, transport.failed = self.watch, self.settle
        transport.on_break = partial(self.watchdog.goodbye, is_stuck=True)
        self._wire()

    def connect(self, addresses: Mapping[int, str], seconds: float, look: Callable[[], None]) -> None:
        """Begins to watch these peers. All of them call this method. Raises as `Watchdog.connect`.

        addresses: the address of each peer's watchdog.
        """
        self.watchdog.connect(addresses, seconds, look)
        self._wire()

    def _wire(self) -> None:
        if self._transport is not None:
            for peer in self.watchdog.wires.keys() - self._wired:
                self._transport.connect_wire(peer, *self.watchdog.wires[peer])
                self._wired.add(peer)

    def look(self, waiting: Waiting, seconds: float) -> None:
        """Checks the peers during a wait that has lasted `seconds`.

        Raises:
            PeerError: a peer is dead or frozen, or the peer of this wait ended and its last arrays had time to arrive.
                Also if a peer that shares a mesh with this process failed in a step, because collectives wait for it.
        """
        ended = ENDED_MESSAGE if waiting.is_message else ENDED
        for loss in self.watchdog.lost:
            is_needed = loss.is_stuck and any({self.me, loss.peer} <= {*owners} for owners in waiting.owners)
            if not loss.ended or is_needed or (loss.peer == waiting.peer and seconds > ended):
                raise PeerError(loss, waiting)

    def watch(self, waiting: Waiting, seconds: float) -> None:
        """Checks the peers as `look` does, and raises TransferError if a live process has not come in time."""
        self.look(waiting, seconds)
        if seconds > self.progress:
            reason = explain(self.known_states(), min(STILL, self.progress / 2)).reason
            where = "this process" if waiting.mesh is None else f"mesh {waiting.mesh}"
            raise TransferError(
                f"{where} waited {self.progress:g} s (JAXPP_PROGRESS_SECONDS) for {waiting.what}: {reason}"
            )

    def states(self) -> Mapping[int, ProcessState]:
        """Asks all processes for their states, and returns those. Takes at most ANSWER seconds."""
        asked = time.monotonic()
        self.watchdog.ask()
        heard = self.watchdog.heard
        while time.monotonic() < asked + ANSWER and any(
            peer not in heard or heard[peer][0] < asked for peer in self._living()
        ):
            time.sleep(TICK / 5)
        return self.known_states(time.monotonic() - asked)

    def known_states(self, patience: float | None = None) -> Mapping[int, ProcessState]:
        """Returns the last states that were heard. A process that is silent for longer has a problem."""
        now, losses = time.monotonic(), {loss.peer: loss for loss in self.watchdog.lost}
        patience = 3 * self.watchdog.pause + ANSWER if patience is None else patience
        found = {self.me: own_state(self.me)}
        for peer, name in self.watchdog.names.items():
            when, message = self.watchdog.heard.get(peer, (now, {}))
            state = ProcessState.of(message, now - when, name)
            if loss := losses.get(peer):
                has_ended = loss.ended and not loss.has_failed
                state = dataclasses.replace(state, problem=loss.how, remedy=LOST, has_ended=has_ended)
            elif now - when > patience or not message:
                state = unanswered(state, now - when)
            found[peer] = state
        return found

    def hang(self) -> Mapping[int, ProcessState] | None:
        """Returns the states if nothing moves for the heartbeat timeout, and this process is to report it, once."""
        if not is_hang(self.known_states(), self.watchdog.seconds):
            self._is_told = False
        elif not self._is_told and is_hang(states := self.states(), self.watchdog.seconds):
            self._is_told = True
            return states if self.me == min(each for each, state in states.items() if not state.problem) else None
        return None

    def _living(self) -> Sequence[int]:
        return sorted(self.watchdog.names.keys() - {loss.peer for loss in self.watchdog.lost})

    def _state(self) -> Mapping[str, Any]:
        return own_state(self.me).message()

    def first_loss(self) -> Loss | None:
        """Returns the first lost peer, or None. Prefers a peer that died or froze to a peer that ended."""
        return min(self.watchdog.lost, key=lambda loss: loss.ended, default=None)

    def settle(self, waiting: Waiting) -> None:
        """Raises as `look` after a transfer failed. First waits up to `SETTLE` seconds for the news of a loss."""
        self.watchdog.wait_for_loss(SETTLE)
        self.look(waiting, 0.0)

    def leave(self) -> None:
        """Says goodbye at exit, and waits for the others' goodbyes, so that they can still fetch arrays from here.

        JAX's own farewell waits for all processes. This process skips that farewell in three cases:

        - Another process is dead or frozen. JAX would then abort this process.
        - A process failed before its first step. The processes that wait for its devices end without a farewell.
        - A transfer failed, and a thread of XLA may still wait for it. That thread must not return while Python ends.

        Process 0 then waits up to `LAST` seconds until the others have left, because its end aborts them.

        A forked child only skips JAX's farewell, because the other processes do not know the child.
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
            # The end of this process also ends stuck collectives of other processes, which may then raise an error.
            seconds = LAST / 2 if is_stuck else min(FAREWELL, self.progress)
            with WaitFor("the end of the other processes", self._living()):
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
        """Says goodbye in the middle of a job, and ends the watch."""
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
        """Ends this process if JAX waits here for the lost process's devices. Nothing can interrupt that wait."""
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
        """Ends this process if a step that ran at the loss still runs, because its thread is in a collective of XLA."""
        if self._transport is not None and running & self._transport.running.keys():
            tell(f"{loss}; this process is in a program of XLA that waits for it, and ends")
            os._exit(1)
