"""The autopsy of a job that hangs: from the waits of all processes to the one that everybody waits for, or the cycle.

It knows neither clocks nor connections. `waiting` collects the waits of a process, and `reporting` those of all.
"""

import dataclasses
import graphlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

STILL = 2.0
"""Seconds without any move after which a process can be blamed."""

SHOWN = 3
"""The largest number of processes with a line of their own."""

DIFFERENT_CALLS = "these calls need each other: make the same calls in the same order in all processes, and start again"
UNKNOWN = "start this process, or see its own output; is the coordinator's address right?"
IN_USERS_CODE = "see what the code at this line waits for: data, a file system, a lock, a loop"
MOVES = "nothing is to be done if it is only slow"
ENDED = "see how its script ended, and start the job again"


def named(processes: Sequence[int]) -> str:
    """Returns `process 3`, or `processes 3, 4`."""
    return f"process{'es' if len(processes) > 1 else ''} {', '.join(map(str, processes))}"


def process_name(process: int, host: str, pid: int) -> str:
    """Returns `process 1 (node7, pid 4711)`."""
    return f"{_called(process)} ({host}, pid {pid})"


def in_slot(slot: int) -> int:
    """Returns the number, below zero, of the process of a slot that has no number in a job yet."""
    return -1 - slot


def _called(process: int) -> str:
    return f"process {process}" if process >= 0 else f"the process in slot {-1 - process}"


@dataclasses.dataclass(frozen=True, slots=True)
class Wait:
    """A wait of one thread of a process.

    what: the awaited thing, as "the compilation of @forward_0".
    peers: the processes that can end the wait; empty if only this process can. None if another thread of this process
        can, whose own wait, if there is one, is the reason.
    seconds: the duration so far.
    at: the user's line.
    remedy: the way out if this wait is the reason of a hang.
    """

    what: str
    peers: tuple[int, ...] | None
    seconds: float = 0.0
    at: str = ""
    remedy: str = ""

    @property
    def text(self) -> str:
        """The wait as the rest of a sentence."""
        at = f", at {self.at}" if self.at else ""
        return f"has waited {self.seconds:.0f} s for {self.what}{at}"


@dataclasses.dataclass(frozen=True, slots=True)
class ProcessState:
    """A process at one moment.

    name: the process number, host and pid.
    at: the user's line in the main thread.
    still: the seconds since it last began or ended a wait or a step, or changed its line.
    waits: its waits.
    problem: why it can't move, as "died"; empty if it answers.
    remedy: the way out of the problem.
    has_ended: whether it has ended without an error.
    """

    name: str
    at: str = ""
    still: float = 0.0
    waits: Sequence[Wait] = ()
    problem: str = ""
    remedy: str = ""
    has_ended: bool = False

    def message(self, room: int = 3000) -> dict[str, Any]:
        """Returns the state for JSON, in at most about `room` bytes: the oldest waits, and the ends of long places."""
        kept: list[dict[str, Any]] = []
        for wait in sorted(self.waits, key=lambda wait: -wait.seconds):
            peers = None if wait.peers is None else wait.peers[:32]
            cut = Wait(wait.what[:200], peers, round(wait.seconds, 2), wait.at[-200:], wait.remedy[:200])
            room -= 6 * len(cut.what + cut.at) + len(cut.remedy) + 200
            if kept and room < 0:
                break
            kept.append(dataclasses.asdict(cut))
        rest = {"problem": self.problem, "remedy": self.remedy, "has_ended": self.has_ended}
        return {"name": self.name, "at": self.at[-200:], "still": round(self.still, 2), "waits": kept, **rest}

    @classmethod
    def of(cls, message: Mapping[str, Any], age: float = 0.0, name: str = "") -> "ProcessState":
        """Returns the state from a message of `age` seconds ago, perhaps of another version, with another name."""
        waits = tuple(
            Wait(
                str(each["what"]),
                None if each["peers"] is None else tuple(map(int, each["peers"])),
                float(each["seconds"]) + age,
                str(each["at"]),
                str(each["remedy"]),
            )
            for each in message.get("waits", ())
        )
        at, still = str(message.get("at", "")), float(message.get("still", 0.0)) + age
        problem, remedy = str(message.get("problem", "")), str(message.get("remedy", ""))
        return cls(name or str(message["name"]), at, still, waits, problem, remedy, bool(message.get("has_ended")))


@dataclasses.dataclass(frozen=True, slots=True)
class Autopsy:
    """The result of `explain`.

    cycle: the processes that wait for each other, in this order; empty if there is no cycle.
    blamed: the process that others wait for and that does not move; None if there is none.
    lines: at most five lines: the reason, the processes that wait, and the way out.
    """

    cycle: tuple[int, ...]
    blamed: int | None
    lines: Sequence[str]

    @property
    def reason(self) -> str:
        """The first line."""
        return self.lines[0]


def explain(states: Mapping[int, ProcessState], still: float = STILL) -> Autopsy:
    """Finds the reason why processes wait: a cycle, otherwise the process that most of them wait for.

    A process that waits for something of its own, or does not answer, is a reason, whatever else it waits for. A
    process that has moved within `still` seconds is in no cycle, and is not blamed.
    """
    moving = {process for process, state in states.items() if state.still < still and not state.problem}
    edges = {
        process: set[int]() if process in moving else _needs(process, state)
        for process, state in sorted(states.items())
    }
    if cycle := _cycle(edges):
        return _explain_cycle(states, cycle, _waiters(edges, cycle))
    waiters = {end: _waiters(edges, [end]) for each in edges.values() for end in each if not edges.get(end)}
    if not waiters:
        return _nobody_waits(states)

    def rank(end: int) -> tuple[bool, bool, bool, int, int]:
        has_ended = end in states and states[end].has_ended
        return has_ended, end in moving, end not in states, -len(waiters[end]), end

    end = min(waiters, key=rank)
    return _explain_end(states, end, waiters[end], end in moving)


def _needs(process: int, state: ProcessState) -> set[int]:
    """Returns the other processes that a process waits for. Empty if it is itself the reason of its wait."""
    if state.problem or any(wait.peers == () for wait in state.waits):
        return set()
    return {peer for wait in state.waits for peer in wait.peers or () if peer != process}


def _cycle(edges: Mapping[int, Collection[int]]) -> Sequence[int]:
    """Returns processes that each wait for the next one, and the last one for the first; empty if there are none."""
    try:
        graphlib.TopologicalSorter(edges).prepare()
    except graphlib.CycleError as error:
        return tuple(reversed(error.args[1][1:]))
    return ()


def _waiters(edges: Mapping[int, Collection[int]], targets: Sequence[int]) -> Sequence[int]:
    """Returns the processes that wait for one of the targets, directly or for another waiter."""
    found = {*targets}
    while new := {process for process, each in edges.items() if process not in found and not found.isdisjoint(each)}:
        found |= new
    return sorted(found - {*targets})


def _explain_cycle(states: Mapping[int, ProcessState], cycle: Sequence[int], waiters: Sequence[int]) -> Autopsy:
    more = f", and {named(waiters)} for them" if waiters else ""
    how = "wait for each other" if len(cycle) == 2 else "wait for each other in this order"
    lines = [f"{named(cycle)} {how}{more}; {_nothing_moved(states)}"]
    following = dict(zip(cycle, [*cycle[1:], cycle[0]], strict=True))
    waits = {process: _longest(states[process], {following[process]}) for process in cycle}
    lines += [f"process {process} {waits[process].text}" for process in cycle[:SHOWN]]
    (remedy, *others) = {wait.remedy for wait in waits.values()}
    return Autopsy(tuple(cycle), None, [*lines, f"go on: {DIFFERENT_CALLS if others or not remedy else remedy}"])


def _explain_end(states: Mapping[int, ProcessState], end: int, waiters: Sequence[int], moves: bool) -> Autopsy:
    state = states.get(end, ProcessState(f"process {end}", problem="has not been heard of", remedy=UNKNOWN))
    own = max((wait for wait in state.waits if not wait.peers), key=lambda wait: wait.seconds, default=None)
    at = f"at {state.at}" if state.at else "in no code of its own"
    if state.problem:
        does, remedy = state.problem, state.remedy
    elif moves:
        does, remedy = f"moves, and is {at}", MOVES
    elif own is not None:
        does, remedy = own.text, own.remedy
    else:
        does, remedy = f"is {at}", IN_USERS_CODE
    wait = "waits" if len(waiters) == 1 else "wait"
    lines = [f"{state.name} {does}; {named(waiters)} {wait} for it; {_nothing_moved(states)}"]
    direct = sorted(waiters, key=lambda process: end not in _needs(process, states[process]))
    lines += [f"process {process} {_longest(states[process]).text}" for process in direct[:SHOWN]]
    return Autopsy((), None if moves else end, [*lines, f"go on: {remedy}"])


def _nobody_waits(states: Mapping[int, ProcessState]) -> Autopsy:
    lines = [f"no process waits for another one; {_nothing_moved(states)}"]
    for process, state in sorted(states.items(), key=lambda each: (each[0] < 0, each[0]))[:SHOWN]:
        own = f"is at {state.at}" if state.at else "is in no code of its own"
        does = state.problem or (_longest(state).text if state.waits else own)
        lines.append(f"{_called(process)} {does}")
    remedies = {_longest(state).remedy for state in states.values() if state.waits}
    remedy = remedies.pop() if len(remedies) == 1 else ""
    return Autopsy((), None, [*lines, f"go on: {remedy or MOVES}"])


def _longest(state: ProcessState, needed: Collection[int] | None = None) -> Wait:
    """Returns the longest wait of a process, for one of the needed processes if they are given."""
    waits = [wait for wait in state.waits if needed is None or not {*(wait.peers or ())}.isdisjoint(needed)]
    return max(waits, key=lambda wait: (bool(wait.peers), wait.seconds))


def _nothing_moved(states: Mapping[int, ProcessState]) -> str:
    seconds = min((state.still for state in states.values() if not state.problem), default=0.0)
    return f"nothing has moved for {seconds:.0f} s" if seconds >= 1 else "the job moves"
