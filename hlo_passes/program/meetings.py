"""An order of the calls and transfers of all meshes in which every send meets its receive."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from jaxlib.mlir import ir

from jaxpp.ir.functions import kind_and_stage
from jaxpp.ir.kinds import cost_of, form_of
from jaxpp.ir.steps import Step


class Transfer(NamedTuple):
    """A value that goes from one mesh to another one."""

    value: ir.Value
    source: int
    target: int


class Event(NamedTuple):
    """What a mesh does: a call, or one end of a transfer."""

    mesh: int
    what: Step[ir.Value] | Transfer


_Time: TypeAlias = tuple[float, int, int]
"""When something is done, the number of a call of `@main`, and whether it is in front of that (0), that, or behind."""


class Meetings:
    """Runs `@main` as if transfers took no time, each mesh one call after the other, and notes when each value moves.

    A transfer takes place when its value is made: the sender's next call has not begun then, and the receiver begins
    its next one behind it. So all meshes agree on one order, and no task that keeps to the times of the schedule waits
    longer than for its values. What a `load` takes moves when the load is due.

    Args:
        homes: the meshes that have each argument.
    """

    def __init__(self, homes: dict[ir.Value, list[int]]) -> None:
        self._homes = homes
        self._clocks: dict[int, float] = {}
        self._made: dict[ir.Value, _Time] = {}
        self._kinds: dict[str, tuple[float, bool]] = {}
        self._events: list[tuple[tuple[float, int, int, int], Event]] = []

    def run(self, steps: Iterable[Step[ir.Value]], results: Mapping[int, Sequence[ir.Value]]) -> list[Event]:
        """The calls of `steps` and all transfers in their order, a send in front of its receive.

        Args:
            steps: those of `@main`; what is no call is left out.
            results: what each mesh returns.
        """
        for number, step in enumerate(steps):
            if step.function is not None:
                self._call(number, step)
        for mesh, values in results.items():
            for value in values:
                self._move(value, mesh)
        return [event for _, event in sorted(self._events, key=itemgetter(0))]

    def _call(self, number: int, call: Step[ir.Value]) -> None:
        cost, late = self._look_up(call)
        for mesh in call.meshes:
            ready = [self._made[value][0] for value in call.operands if value in self._made]
            start = max([self._clocks.get(mesh, 0.0), *ready])
            for value in call.operands:
                self._move(value, mesh, (start, number, 0) if late else None)
            self._events.append(((start, number, 1, len(self._events)), Event(mesh, call)))
            self._clocks[mesh] = start + cost
            for value in call.results:
                self._homes.setdefault(value, []).append(mesh)
                self._made.setdefault(value, (start + cost, number, 2))

    def _look_up(self, call: Step[ir.Value]) -> tuple[float, bool]:
        """How long a call takes, and whether what it takes is sent late."""
        if call.callee not in self._kinds:
            assert call.function is not None
            kind = kind_and_stage(call.function)[0]
            self._kinds[call.callee] = cost_of(kind), form_of(kind).sends_late
        return self._kinds[call.callee]

    def _move(self, value: ir.Value, mesh: int, time: _Time | None = None) -> None:
        """Let a value go to a mesh that lacks it: when it is made, unless `time` says when."""
        homes = self._homes.get(value, [mesh])  # what has none is a constant, or refused by who asks for it
        if mesh not in homes:
            when = *(time or self._made.get(value, (0.0, -1, 2))), len(self._events)
            transfer = Transfer(value, homes[0], mesh)
            self._events += [(when, Event(homes[0], transfer)), (when, Event(mesh, transfer))]
            homes.append(mesh)


def with_early_receives(events: Sequence[Event], meshes: Collection[int]) -> list[Event]:
    """`events` with the receives of these meshes one call earlier, where no other transfer stands in between."""
    behind: dict[int, int | None] = {}
    places: list[tuple[int, int, int]] = []
    for number, (mesh, what) in enumerate(events):
        receives = isinstance(what, Transfer) and what.target == mesh
        call = behind.get(mesh) if receives and mesh in meshes else None
        places.append((number, 1, 0) if call is None else (call, 0, number))
        if not receives:
            behind[mesh] = None if isinstance(what, Transfer) else number
    return [event for _, event in sorted(zip(places, events, strict=True), key=itemgetter(0))]
