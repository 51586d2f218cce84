"""An order of the calls and transfers of all meshes in which every send meets its receive."""

import heapq
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

from jaxlib.mlir import ir

from jaxpp.ir.functions import kind_and_stage
from jaxpp.ir.kinds import cost_of, form_of
from jaxpp.ir.steps import Step


@dataclass(frozen=True, slots=True, eq=False)
class MeshTransfer:
    """A value that goes from one mesh to another one."""

    value: ir.Value
    source: int
    target: int


class Action(NamedTuple):
    """What a mesh does next: a call, or one end of a transfer."""

    mesh: int
    what: Step[ir.Value] | MeshTransfer


@dataclass(slots=True, eq=False)
class _Call:
    """A call on one mesh, what it takes from other meshes, and what others take of what it makes."""

    step: Step[ir.Value]
    cost: float
    takes: list[MeshTransfer]
    makes: list[MeshTransfer] = field(default_factory=list[MeshTransfer])


class TransferScheduler:
    """Runs `@main` as if transfers took no time, each mesh one call after the other, and notes when each value moves.

    A value moves as soon as it is made and its two meshes are between two calls; where transfers don't keep a mesh from
    running (`beside`), it need not be. A mesh that can go on goes on, rather than wait for another one. So all agree on
    one order, and it costs little or no time. What a `load` takes moves when the load is due.

    Args:
        steps: those of `@main`; what is no call is left out.
        homes: the meshes that have each argument.
        results: what each mesh returns.
        beside: the meshes whose transfers run beside their calls.
    """

    def __init__(
        self,
        steps: Iterable[Step[ir.Value]],
        homes: dict[ir.Value, list[int]],
        results: Mapping[int, Sequence[ir.Value]],
        beside: Collection[int],
    ) -> None:
        self._homes, self._beside = homes, beside
        self._calls: dict[int, list[_Call]] = {mesh: [] for mesh in results}
        self._makers: dict[ir.Value, _Call] = {}
        self._transfers: dict[tuple[ir.Value, int], MeshTransfer] = {}
        self._open: dict[int, dict[MeshTransfer, None]] = {mesh: {} for mesh in results}
        """What waits for each mesh to take part in it."""
        self._made: set[MeshTransfer] = set()
        """What is sent late, and there to be sent."""
        self._late: set[MeshTransfer] = set()
        self._kinds: dict[str, tuple[float, bool]] = {}
        for step in steps:
            if step.function is not None:
                self._read(step)
        for mesh, values in results.items():
            for value in values:
                self._find(value, mesh, late=False)

    def _read(self, step: Step[ir.Value]) -> None:
        if step.callee not in self._kinds:
            assert step.function is not None
            kind = kind_and_stage(step.function)[0]
            self._kinds[step.callee] = cost_of(kind), form_of(kind).sends_late
        cost, late = self._kinds[step.callee]
        for mesh in step.meshes:
            found = [self._find(value, mesh, late) for value in dict.fromkeys(step.operands)]
            call = _Call(step, cost, [each for each in found if each])
            self._calls[mesh].append(call)
            for value in step.results:
                self._homes.setdefault(value, []).append(mesh)
                self._makers.setdefault(value, call)

    def _find(self, value: ir.Value, mesh: int, late: bool) -> MeshTransfer | None:
        """The transfer of a value to a mesh that lacks it; one that is late begins when it is due."""
        homes = self._homes.get(value, [mesh])  # what has none is a constant, or refused by who asks for it
        if mesh in homes:
            return self._transfers.get((value, mesh))
        homes.append(mesh)
        transfer = self._transfers[value, mesh] = MeshTransfer(value, homes[0], mesh)
        if late:
            self._late.add(transfer)
        if value in self._makers:
            self._makers[value].makes.append(transfer)
        else:
            self._begin(transfer)
        return transfer

    def run(self) -> list[Action]:
        """The calls and all transfers in their order, a send in front of its receive."""
        self._actions: list[Action] = []
        self._free: set[int] = set()
        self._gone: set[MeshTransfer] = set()
        ends = [(0.0, mesh) for mesh in self._calls]
        running: dict[int, _Call] = {}
        queues = {mesh: deque(calls) for mesh, calls in self._calls.items()}
        while ends:
            now, woken = ends[0][0], list[int]()
            while ends and ends[0][0] == now:
                woken.append(heapq.heappop(ends)[1])
            self._free.update(woken)
            made = [each for mesh in woken if mesh in running for each in running.pop(mesh).makes]
            for transfer in made:
                self._begin(transfer)
            touched = {*woken, *(each.target for each in made), *self._meet(woken)}
            for mesh in sorted(touched & self._free):
                if queues[mesh] and self._has_all(queues[mesh][0], mesh):
                    call = running[mesh] = queues[mesh].popleft()
                    self._actions.append(Action(mesh, call.step))
                    self._free.remove(mesh)
                    heapq.heappush(ends, (now + call.cost, mesh))
        return self._actions

    def _begin(self, transfer: MeshTransfer) -> None:
        """Let a transfer that may begin wait for its meshes; one that is late, for its turn."""
        if transfer in self._late:
            self._made.add(transfer)
        else:
            self._open[transfer.source][transfer] = self._open[transfer.target][transfer] = None

    def _has_all(self, call: _Call, mesh: int) -> bool:
        """Whether a mesh has all that its next call takes; what is sent late may begin now."""
        due = self._made.intersection(call.takes)
        if due:
            self._made -= due
            self._late -= due
            for transfer in call.takes:
                if transfer in due:
                    self._begin(transfer)
            self._meet([mesh])
        return self._gone.issuperset(call.takes)

    def _meet(self, meshes: Iterable[int]) -> set[int]:
        """Let the transfers of these meshes take place that can. Returns the meshes that have got something."""
        found: set[int] = set()
        for transfer in [each for mesh in meshes for each in self._open[mesh]]:
            ends = (transfer.source, transfer.target)
            if transfer not in self._gone and all(mesh in self._free or mesh in self._beside for mesh in ends):
                for mesh in ends:
                    self._actions.append(Action(mesh, transfer))
                    del self._open[mesh][transfer]
                self._gone.add(transfer)
                found.add(transfer.target)
        return found


def with_early_receives(actions: Sequence[Action], meshes: Collection[int]) -> list[Action]:
    """`actions` with the receives of these meshes one call earlier, where no other transfer stands in between."""
    behind: dict[int, int | None] = {}
    places: list[tuple[int, int, int]] = []
    for number, (mesh, what) in enumerate(actions):
        receives = isinstance(what, MeshTransfer) and what.target == mesh
        call = behind.get(mesh) if receives and mesh in meshes else None
        places.append((number, 1, 0) if call is None else (call, 0, number))
        if not receives:
            behind[mesh] = None if isinstance(what, MeshTransfer) else number
    return [event for _, event in sorted(zip(places, actions, strict=True), key=itemgetter(0))]
