"""The autopsy of a job that hangs: from the waits of all processes to the reason, which is a process or a cycle.

This file knows neither clocks nor connections. `waiting` collects the waits of a process. `reporting` collects the
waits of all processes.
"""

import dataclasses
import graphlib
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

STILL = 2.0
"""Seconds without any move after which a process can be blamed."""

SHOWN = 3
"""The largest number of processes with a line of their own."""

LARGEST = 3500
"""The largest number of bytes of a state in JSON, so that a heartbeat has room for it."""

DIFFERENT_CALLS = "these calls need each other: make the same calls in the same order in all processes, and start again"
UNKNOWN = "start this process, or see its own output; is the coordinator's address right?"
IN_USERS_CODE = "see what the code at this line waits for: data, a file system, a lock, a loop"
MOVES = "nothing is to be done if it is only slow"


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
    peers: the processes that can end the wait. Empty if only this process can end it. None if another thread of this
        process can. The wait of that thread, if it waits, is then the reason.
    seconds: the duration so far.
    at: the user's line.
    remedy: the way out if this wait is the reason of a hang.
    is_barrier: whether all processes must come to the same wait. `peers` is None: `explain` finds who is missing.
    """

    what: str
    peers: Sequence[int] | None
    seconds: float = 0.0
    at: str = ""
    remedy: str = ""
    is_barrier: bool = False

    @property
    def text(self) -> str:
        """The wait as the rest of a sentence."""
        at = f", at {self.at}" if self.at else ""
        return f"has waited {self.seconds:.0f} s for {self.what}{at}"

    def cut(self) -> "Wait":
        """Returns the wait with the ends of long texts."""
        peers = None if self.peers is None else self.peers[:32]
        texts = {"what": _end(self.what), "at": _end(self.at), "remedy": _end(self.remedy)}
        return dataclasses.replace(self, peers=peers, seconds=round(self.seconds, 2), **texts)


@dataclasses.dataclass(frozen=True, slots=True)
class ProcessState:
    """A process at one moment.

    name: the process number, host and pid.
    at: the user's line in the main thread.
    still: the seconds since it last began or ended a wait or a step, or changed its line.
    waits: its waits.
    problem: why it can't move, as "died". Empty if it answers.
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

    def message(self) -> dict[str, Any]:
        """Returns the state for JSON, with the oldest waits, in at most LARGEST bytes."""
        oldest = sorted(self.waits, key=lambda wait: -wait.seconds)[:9]
        waits = [wait.cut() for wait in oldest]
        cut = dataclasses.replace(self, at=_end(self.at), still=round(self.still, 2), waits=waits)
        message = dataclasses.asdict(cut)
        while len(message["waits"]) > 1 and len(json.dumps(message)) > LARGEST:
            message["waits"].pop()
        return message

    @classmethod
    def of(cls, message: Mapping[str, Any], age: float = 0.0, name: str = "") -> "ProcessState":
        """Returns the state from a message of `age` seconds ago, perhaps under another name."""
        waits = [Wait(**{**each, "seconds": each["seconds"] + age}) for each in message.get("waits", ())]
        known: dict[str, Any] = {
            each.name: message[each.name] for each in dataclasses.fields(cls) if each.name in message
        }
        known |= {"name": name or message["name"], "still": message.get("still", 0.0) + age, "waits": waits}
        return cls(**known)


@dataclasses.dataclass(frozen=True, slots=True)
class Autopsy:
    """The result of `explain`.

    cycle: the processes that wait for each other, in this order. Empty if there is no cycle.
    blamed: the process that does not move while others wait for it. None if there is no such process.
    lines: at most five lines, with the reason, the processes that wait, and the way out.
    """

    cycle: Sequence[int]
    blamed: int | None
    lines: Sequence[str]

    @property
    def reason(self) -> str:
        """The first line."""
        return self.lines[0]


def explain(states: Mapping[int, ProcessState], still: float = STILL) -> Autopsy:
    """Finds the reason for the waits of processes: a cycle, otherwise the process that most of them wait for.

    A process can itself be the reason of its waits: it has a problem, or one of its waits needs no other process. A
    process that has moved within `still` seconds is in no cycle, and is not blamed.
    """
    states = _with_missing(states)
    moving = {process for process, state in states.items() if state.still < still and not state.problem}
    edges = {
        process: set[int]() if process in moving else _needs(process, states[process]) for process in sorted(states)
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


def _with_missing(states: Mapping[int, ProcessState]) -> Mapping[int, ProcessState]:
    """Gives waits at barriers their peers: the missing processes. If none is, they are at different barriers."""
    members = {process for process in states if process >= 0}
    missing = {process for process in members if not any(wait.is_barrier for wait in states[process].waits)}
    found: dict[int, ProcessState] = {}
    for process, state in states.items():
        peers = sorted(missing or members - {process})
        waits = [dataclasses.replace(wait, peers=peers) if wait.is_barrier else wait for wait in state.waits]
        found[process] = dataclasses.replace(state, waits=waits)
    return found


def _end(text: str) -> str:
    """Returns the last 150 characters of a text. One beyond U+FFFF counts as two, as JSON writes it as two."""
    return text.encode("utf-16-le", "surrogatepass")[-300:].decode("utf-16-le", "ignore")


def is_hang(states: Mapping[int, ProcessState], seconds: float) -> bool:
    """Whether no process has moved for so many seconds, and one waits, but not only for work of its own."""
    living = [state for state in states.values() if not state.problem]
    is_one_waiting = any(wait.peers is None or wait.peers for state in living for wait in state.waits)
    return is_one_waiting and all(state.still > seconds for state in living)


def _needs(process: int, state: ProcessState) -> set[int]:
    """Returns the other processes that a process waits for. Empty if it is itself the reason of its wait."""
    if state.problem or any(wait.peers is not None and not wait.peers for wait in state.waits):
        return set()
    return {peer for wait in state.waits for peer in wait.peers or () if peer != process}


def _cycle(edges: Mapping[int, Collection[int]]) -> Sequence[int]:
    """Returns a cycle: each process waits for the next one, and the last one for the first. Empty without a cycle."""
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
    waits = [_longest(states[process], {peer}) for process, peer in zip(cycle, [*cycle[1:], cycle[0]], strict=True)]
    (remedy, *others) = {wait.remedy for wait in waits}
    remedy = DIFFERENT_CALLS if others or not remedy else remedy
    does = {process: wait.text for process, wait in zip(cycle, waits, strict=True)}
    return Autopsy(cycle, None, _lines(states, f"{named(cycle)} {how}{more}", does, remedy))


def _explain_end(states: Mapping[int, ProcessState], end: int, waiters: Sequence[int], moves: bool) -> Autopsy:
    state = states.get(end, ProcessState(f"process {end}", problem="has not been heard of", remedy=UNKNOWN))
    own = [wait for wait in state.waits if not wait.peers and not moves]
    text, remedy = _does(dataclasses.replace(state, waits=own))
    if moves:
        text, remedy = f"moves, and {text}", MOVES
    reason = f"{state.name} {text}; {named(waiters)} wait{'s' if len(waiters) == 1 else ''} for it"
    direct = sorted(waiters, key=lambda process: end not in _needs(process, states[process]))
    does = {process: _longest(states[process]).text for process in direct}
    return Autopsy((), None if moves else end, _lines(states, reason, does, remedy))


def _nobody_waits(states: Mapping[int, ProcessState]) -> Autopsy:
    does = {process: _does(states[process])[0] for process in sorted(states, key=lambda each: (each < 0, each))}
    remedies = {_longest(state).remedy for state in states.values() if state.waits}
    remedy = remedies.pop() if len(remedies) == 1 else ""
    return Autopsy((), None, _lines(states, "no process waits for another one", does, remedy or MOVES))


def _does(state: ProcessState) -> tuple[str, str]:
    """Returns what a process does, as the rest of a sentence, and the way out if that is the reason of a hang."""
    if state.problem:
        return state.problem, state.remedy
    if state.waits:
        return _longest(state).text, _longest(state).remedy
    return f"is at {state.at}" if state.at else "is in no code of its own", IN_USERS_CODE


def _longest(state: ProcessState, needed: Collection[int] | None = None) -> Wait:
    """Returns the longest wait of a process, for one of the needed processes if they are given."""
    waits = [wait for wait in state.waits if needed is None or not {*(wait.peers or ())}.isdisjoint(needed)]
    return max(waits, key=lambda wait: (bool(wait.peers), wait.seconds))


def _lines(states: Mapping[int, ProcessState], reason: str, does: Mapping[int, str], remedy: str) -> Sequence[str]:
    """Returns the lines of a report. does: what processes do, those with a line of their own first."""
    seconds = min((state.still for state in states.values() if not state.problem), default=0.0)
    moved = f"nothing has moved for {seconds:.0f} s" if seconds >= 1 else "the job moves"
    shown = [f"{_called(process)} {text}" for process, text in [*does.items()][:SHOWN]]
    return [f"{reason}; {moved}", *shown, f"go on: {remedy}"]
