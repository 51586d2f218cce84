"""The head, which coordinates a job that heals: it decides who takes part, from which step, and what states are safe.

The processes run in generations. Each generation is a separate job of `jax.distributed` with its own process numbers
and coordination service. The service runs in the head, outside of all these processes, so any of them may die, even the
first. When a process dies or comes back, the others leave the generation and tell that they are ready. When all are
ready, the next generation begins.
"""

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence, Set
from typing import Any

from jaxpp._system import tell
from jaxpp.healing.store import StatePart

SETTLE = 10.0
"""Seconds that a generation of new processes waits for the missing ones, if at least `least` have come."""

DOUBT = 2.0
"""Seconds that a process has to leave its generation when another process has reported it lost."""

ATTEMPTS = 3
"""The number of generations that may end at one step before the job gives up."""

START_AGAIN = 1.0
"""Seconds between two attempts to start a coordination service."""

COMPILES_AHEAD = 2
"""The number of attempts to compile the step ahead for a number of processes, before the head skips that number."""

SendMessage = Callable[..., None]
"""Sends a message to a process. A lost connection is not an error."""


class LostError(Exception):
    """The job can't go on."""


@dataclasses.dataclass(frozen=True)
class JobOptions:
    """The options of a job, which all its launchers know.

    processes: the number of processes that compute.
    least: the number of processes with which the job may go on.
    wait: seconds that the remaining processes wait for a restarted one, before they go on without it.
    prepares: whether the step is first compiled for each smaller number of processes.
    spares: the number of processes more, which wait until one dies.
    """

    processes: int
    least: int
    wait: float = 0.0
    prepares: bool = False
    spares: int = 0

    @property
    def slots(self) -> int:
        """The number of all processes."""
        return self.processes + self.spares

    @property
    def may_move(self) -> bool:
        """Whether another launcher may coordinate the job: at most one part of the hosts can go on without the rest."""
        return 2 * self.least > self.slots


@dataclasses.dataclass(eq=False)
class Worker:
    """A process that takes part in a generation, or waits for one.

    slot: the index of the process in the job, which its replacement takes over.
    store: the address of the Store of its host.
    send: sends the process a message.
    kill: kills the process.
    number: its process number in the running generation; None if it is not in the generation, or has left it.
    took_part: whether it was in any generation.
    is_ready: whether it waits for the next generation.
    is_told: whether it knows that it waits as a spare.
    is_done: whether it has made all steps.
    """

    slot: int
    store: str
    send: SendMessage
    kill: Callable[[], None]
    number: int | None = None
    took_part: bool = False
    is_ready: bool = False
    is_told: bool = False
    is_done: bool = False


@dataclasses.dataclass
class Generation:
    """The processes that compute together.

    number: the number of the generation, from 1.
    count: the number of its processes.
    service: its coordination service, to be shut down after it.
    held: by step and owner, the Stores that hold this owner's part of the state.
    safe: the last step whose whole state is held.
    is_broken: whether a process has died or failed.
    is_attempt: whether its end counts against the step.
    is_counted: whether its end has been counted.
    regroups: whether its processes are to leave it, because others wait.
    prepares: whether it only compiles the step.
    """

    number: int
    count: int
    service: Any = None
    held: dict[int, dict[int, list[str]]] = dataclasses.field(default_factory=dict[int, dict[int, list[str]]])
    safe: int | None = None
    is_broken: bool = False
    is_attempt: bool = True
    is_counted: bool = False
    regroups: bool = False
    prepares: bool = False


class Head:
    """The state of the job, and the decisions about it. One thread makes all calls, so that they never overlap.

    options: the options of the job.
    start_service: starts a coordination service for a number of processes; returns the service and its address.
    drop: called with (generation, step) when the states before that are no longer needed.
    patience: seconds that a process has to leave a broken generation, before it is killed.
    """

    def __init__(
        self,
        options: JobOptions,
        start_service: Callable[[int], tuple[Any, str]],
        drop: Callable[[int, int], None],
        patience: float = 45.0,
    ) -> None:
        self.processes, self.least, self.wait, self.patience = options.processes, options.least, options.wait, patience
        self._start_service, self._drop = start_service, drop
        self.order = list(range(options.slots))
        """The slots in the order of their process numbers. Those after the first `processes` are of spares."""
        self.workers: list[Worker] = []
        self.generation: Generation | None = None
        self.former: list[Generation] = []
        self.stores: list[str] = []
        """The addresses of the Stores, one for each host. Each also holds the states of the host before it."""
        self.end: str | None = None
        """Why the job has ended; empty if all steps are made, None while it runs."""
        self._homes: dict[int, str] = {}
        """The Store of the host of each slot."""
        self._waits_since: float | None = None
        self._doubted: list[Worker] = []
        self._first_ready: float | None = None
        self._attempts: list[int] = []
        self._error = ""
        self._start_again, self._start_error = 0.0, ""
        """When to start the next coordination service at the earliest, and the last error of such a start."""
        self.was_safe = False
        """Whether a state was ever held as a whole."""
        self._waits_told = False
        self._to_prepare = dict.fromkeys(range(self.least, self.processes) if options.prepares else (), COMPILES_AHEAD)

    def joined(self, worker: Worker) -> None:
        """Handles a process that waits to take part."""
        if self.end is not None:
            worker.send(end=self.end)
            return
        worker.is_ready = True
        self.workers.append(worker)
        self._homes[worker.slot] = worker.store
        self._form()

    def gone(self, worker: Worker, how: str = "died") -> None:
        """Handles the loss of a process."""
        if worker not in self.workers:
            return
        self.workers.remove(worker)
        if worker.number is not None and not worker.is_done:
            self._break(f"process {worker.number} of {self.generation.count if self.generation else 0} {how}")
        self._form()

    def frozen(self, worker: Worker) -> None:
        """Handles a process whose heartbeats have stopped: kills it, and counts it as lost."""
        if worker in self.workers and self.end is None:
            worker.kill()
            self.gone(worker, "is frozen")

    def ready(self, worker: Worker, error: str, lost: list[int], unreachable: Sequence[str] = ()) -> None:
        """Handles a process that has left the generation, and waits for the next one.

        error: the error because of which it left; empty if the head had asked it to leave.
        lost: the process numbers that it found dead or frozen.
        unreachable: the Stores that did not give it a part of the state to resume from.
        """
        worker.number, worker.is_ready = None, True
        if error:
            self._break(error, is_attempt=not unreachable)
        for own in filter(None, [self.generation, *self.former] if unreachable else []):
            for parts in own.held.values():
                parts.update(
                    {owner: [each for each in stores if each not in unreachable] for owner, stores in parts.items()}
                )
        self._doubted += [each for each in self.workers if each.number in lost]
        self._form()

    def leaves(self, worker: Worker, error: str) -> None:
        """Handles a process that has left the generation, and will be started again."""
        worker.number = None
        self._break(error)

    def fails(self, worker: Worker, error: str) -> None:
        """Handles an error of the user's functions, with which a process ends.

        Before any state was held there is nothing to resume: the script fails in the same way each time.
        """
        own = self.generation
        if own is not None and not (self.was_safe or own.is_broken or own.prepares):
            self.stop(f"the training failed before its first state was held, so it is not begun again: {error}")
        else:
            self.leaves(worker, error)

    def held(self, worker: Worker, generation: int, step: int, stores: list[str]) -> None:
        """Notes the Stores that hold the worker's part of the state after `step` steps. Tells all when it is whole."""
        own = self.generation
        if own is None or own.number != generation or worker.number is None:
            return
        parts = own.held.setdefault(step, {})
        parts[worker.number] = stores
        if len(parts) < own.count:
            return
        own.safe, own.held = step, {each: found for each, found in own.held.items() if each >= step}
        waiting = [each for each in self.workers if each.number is None]
        own.regroups = own.regroups or bool(waiting and own.count < self.processes)
        for each in self.workers:
            if each.number is not None:
                each.send(safe=step, regroup=own.regroups)
            elif own.count == self.processes and not each.is_told:  # the step is saved by now
                each.is_told = True
                each.send(spare=own.count)
        self.former, self.was_safe = [], True
        self._drop(generation, step)

    def done(self, worker: Worker) -> None:
        """Handles a process that has made all steps, when the last state is safe: the job ends well."""
        worker.is_done = True
        self.end = ""
        for each in self.workers:
            if each.number is None:
                each.send(end="")

    def found(self, store: str, parts: Sequence[StatePart], was_safe: bool) -> None:
        """Notes the parts of states that a launcher holds since another head coordinated the job."""
        for part in parts:
            own = next((each for each in self.former if each.number == part.generation), None)
            if own is None:
                own = Generation(part.generation, part.owners)
                self.former = sorted([*self.former, own], key=lambda each: each.number)
            own.held.setdefault(part.step, {}).setdefault(part.owner, []).append(store)
        self.was_safe = self.was_safe or was_safe

    def rest(self, seconds: float) -> None:
        """Begins no generation for so many seconds."""
        self._start_again = time.monotonic() + seconds

    def lost_store(self, address: str) -> None:
        """Handles the loss of a host, with all states in its Store."""
        if address in self.stores:
            self.stores.remove(address)

    def tick(self) -> None:
        """Begins a generation if possible, and kills processes that are late. Called several times a second."""
        self._form()
        waits = time.monotonic() - self._waits_since if self._waits_since else 0.0
        for each in [each for each in self.workers if each.number is not None]:
            if waits > self.patience or (waits > DOUBT and each in self._doubted):
                tell(f"process {each.number} did not come back after {self._error}; it is killed")
                self._doubted = [other for other in self._doubted if other is not each]
                each.kill()
                self.gone(each)

    def stop(self, reason: str) -> None:
        """Ends the job."""
        self.end = reason
        for each in self.workers:
            each.send(end=reason)

    def _break(self, error: str, *, is_attempt: bool = True) -> None:
        own = self.generation
        if own is None or own.is_broken:  # later errors follow from the first one
            return
        own.is_broken, own.is_attempt, self._error = True, is_attempt, error
        self._waits_since = time.monotonic()
        for each in self.workers:
            if each.number is not None:
                each.send(stop=error)

    def _form(self) -> None:
        """Begins the next generation, if all its processes are ready."""
        ready = [each for each in self.workers if each.is_ready]
        if self.end is not None or not ready or any(each.number is not None for each in self.workers):
            return
        if time.monotonic() < self._start_again:
            return
        self._waits_since, self._doubted = None, []
        if len(ready) < self.processes and not self._may_begin(ready):
            self._say_who_is_missing(ready)
            return
        former = self.generation
        try:
            resume = self._latest({each.store for each in ready})
            if former is not None and not former.is_counted:
                former.is_counted = True
                if former.prepares:
                    self._end_preparation(former)
                elif former.is_broken and former.is_attempt:
                    self._count_attempt(resume["step"] if resume else 0)
        except LostError as error:
            self.stop(str(error))
            return
        taking_part = self._taking_part(ready)
        smaller = [count for count in self._to_prepare if count < len(taking_part)]
        if resume is None and smaller:
            self._begin(taking_part[: smaller[-1]], None, prepares=True)
        else:
            self._begin(taking_part, resume)

    def _taking_part(self, ready: list[Worker]) -> list[Worker]:
        """Returns the processes of the next generation, in the order of their numbers.

        A spare takes the number of a missing process, if possible one of the same host. So the others keep theirs.
        """
        by_slot = {each.slot: each for each in ready}
        for place, slot in enumerate(self.order[: self.processes]):
            spares = [each for each in self.order[self.processes :] if each in by_slot]
            if slot not in by_slot and spares:
                spare = min(spares, key=lambda each: by_slot[each].store != self._homes.get(slot))
                self.order[self.order.index(spare)], self.order[place] = slot, spare
                if self.generation is not None:
                    tell(f"the spare process of slot {spare} takes the place of slot {slot}")
        return [by_slot[slot] for slot in self.order if slot in by_slot][: self.processes]

    def _end_preparation(self, former: Generation) -> None:
        """Counts an attempt to compile ahead. After the last failure the job goes on without that program."""
        self._to_prepare[former.count] -= 1
        if not former.is_broken:
            del self._to_prepare[former.count]
        elif not self._to_prepare[former.count]:
            del self._to_prepare[former.count]
            tell(f"nothing is compiled ahead for {former.count} processes: {self._error}")

    def _may_begin(self, ready: list[Worker]) -> bool:
        """Whether to begin without the missing processes. Those that took part before wait `wait`, new ones SETTLE."""
        self._first_ready = self._first_ready or time.monotonic()
        patience = self.wait if any(each.took_part for each in ready) else SETTLE
        return len(ready) >= self.least and time.monotonic() - self._first_ready >= patience

    def _say_who_is_missing(self, ready: list[Worker]) -> None:
        """Prints once which slots are missing, when the ready processes have waited for some time."""
        since = self._first_ready or time.monotonic()
        if self._waits_told or time.monotonic() - since < max(SETTLE, self.wait):
            return
        self._waits_told = True
        missing = sorted({*self.order} - {each.slot for each in ready})
        slots = f"slot{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}"
        tell(f"{len(ready)} of {self.processes} processes are ready, and wait for {slots}: --least is {self.least}")

    def _latest(self, living: Set[str]) -> dict[str, Any] | None:
        """Returns the latest state that is held as a whole, and its holders; None if no state was ever safe.

        living: the Stores of hosts with ready processes, which are listed first.
        Raises LostError if a safe state has been lost.
        """
        for own in filter(None, [self.generation, *reversed(self.former)]):
            for step, parts in sorted(own.held.items(), reverse=True):
                held = [[each for each in parts.get(owner, []) if each in self.stores] for owner in range(own.count)]
                holders = [sorted(each, key=lambda store: store not in living) for each in held]
                if all(holders):
                    return {"generation": own.number, "step": step, "holders": holders}
        if self.was_safe:
            raise LostError("the state is lost with the hosts that held it; start the job again from a checkpoint")
        return None

    def _count_attempt(self, step: int) -> None:
        self._attempts.append(step)
        if self._attempts.count(step) >= ATTEMPTS:
            raise LostError(f"what follows step {step} failed {ATTEMPTS} times, at last: {self._error}")

    def _stores_for(self, worker: Worker) -> list[str]:
        """Returns the Stores for the state of a process: its own host's, and the next host's."""
        if worker.store not in self.stores:  # the loss of the host is about to be noticed
            return [worker.store]
        place = self.stores.index(worker.store)
        return [*self.stores[place:], *self.stores[:place]][:2]

    def _begin(self, workers: list[Worker], resume: dict[str, Any] | None, *, prepares: bool = False) -> None:
        number = max([each.number for each in filter(None, [self.generation, *self.former])], default=0) + 1
        try:
            service, coordinator = self._start_service(len(workers))
        except Exception as error:  # of any kind: another port may work, or this one later
            self.rest(START_AGAIN)
            if str(error) != self._start_error:
                tell(f"the coordination service can't start, and is tried again every {START_AGAIN:g} s: {error}")
            self._start_error = str(error)
            return
        if self.generation is not None:
            # In a thread: if a host has vanished, the service waits 5 s for answers to its process's requests. Not a
            # daemon: Python can't exit while a thread is in C++.
            threading.Thread(target=self.generation.service.shutdown, name="jaxpp-shutdown").start()
            self.former.append(self.generation)
        self._start_error = ""
        self.generation = Generation(number, len(workers), service, prepares=prepares)
        self._first_ready, self._waits_told = None, False
        message = {"go": number, "count": len(workers), "coordinator": coordinator, "resume": resume}
        for place, each in enumerate(workers):
            each.number, each.is_ready, each.took_part, each.is_told = place, False, True, False
            each.send(**message, number=place, stores=self._stores_for(each), prepares=prepares)
        if prepares:
            tell(f"{len(workers)} of {self.processes} processes compile the step ahead")
        elif number > 1:
            where = f"after step {resume['step']}" if resume else "from the beginning"
            tell(f"{len(workers)} of {self.processes} processes go on {where}")
