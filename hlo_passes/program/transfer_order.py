"""Orders the calls and transfers of all meshes so that every send meets its receive."""

import heapq
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

from jaxlib.mlir import ir

from jaxpp.ir.kinds import cost_of, form_of
from jaxpp.ir.steps import Step


@dataclass(frozen=True, slots=True, eq=False)
class MeshTransfer:
    """The transfer of one value from mesh `source` to mesh `target`."""

    value: ir.Value
    source: int
    target: int


class Action(NamedTuple):
    """The next action of a mesh: a call, or its end of a transfer."""

    mesh: int
    what: Step | MeshTransfer


@dataclass(slots=True, eq=False)
class _Call:
    """A call on one mesh.

    Attributes:
        step: the call.
        cost: its estimated duration, in forward tasks.
        takes: the transfers that bring its operands to the mesh.
        makes: the transfers that take its results to other meshes.
    """

    step: Step
    cost: float
    takes: list[MeshTransfer]
    makes: list[MeshTransfer] = field(default_factory=list[MeshTransfer])


class TransferScheduler:
    """A simulation of `@main` in which transfers take no time, and each mesh runs one call after the other.

    It records when each value moves. A value moves as soon as it is made and its two meshes are between two calls. A
    mesh in `beside` need not be between two calls. A mesh that can run its next call does so rather than wait for
    another mesh. All meshes thus agree on one order, at little or no cost in time. An operand of a `load` moves only
    when the `load` is due.

    Args:
        steps: the operations of `@main`; only calls are considered.
        homes: for each argument of `@main` the meshes that hold it. The scheduler adds the meshes of all other values.
        results: for each mesh the values that it returns.
        beside: the meshes whose transfers run beside their calls.
    """

    def __init__(
        self,
        steps: Iterable[Step],
        homes: dict[ir.Value, list[int]],
        results: Mapping[int, Sequence[ir.Value]],
        beside: Collection[int],
    ) -> None:
        self._homes, self._beside = homes, beside
        self._calls: dict[int, list[_Call]] = {mesh: [] for mesh in results}
        self._makers: dict[ir.Value, _Call] = {}
        self._transfers: dict[tuple[ir.Value, int], MeshTransfer] = {}
        self._open: dict[int, dict[MeshTransfer, None]] = {mesh: {} for mesh in results}
        """For each mesh its transfers that are ready and have not happened yet."""
        self._made: set[MeshTransfer] = set()
        """Late transfers whose value is made, but whose receiving call is not due yet."""
        self._late: set[MeshTransfer] = set()
        for step in steps:
            if step.function is not None:
                self._read(step)
        for mesh, values in results.items():
            for value in values:
                self._find(value, mesh, late=False)

    def _read(self, step: Step) -> None:
        cost, late = cost_of(step.kind), form_of(step.kind).sends_late
        for mesh in step.meshes:
            found = [self._find(value, mesh, late) for value in dict.fromkeys(step.operands)]
            call = _Call(step, cost, [each for each in found if each])
            self._calls[mesh].append(call)
            for value in step.results:
                self._homes.setdefault(value, []).append(mesh)
                self._makers.setdefault(value, call)

    def _find(self, value: ir.Value, mesh: int, late: bool) -> MeshTransfer | None:
        """Returns the transfer that brings `value` to `mesh`; None if the mesh has the value itself.

        A new transfer begins when its value is made, or, if it is `late`, when the call that takes the value is due.
        """
        homes = self._homes.get(value, [mesh])  # without homes: a constant, or an error that the caller reports
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
        """Runs the simulation. Returns all calls and transfers in order, each send right before its receive."""
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
        """Lets a transfer whose value exists wait for its meshes; a late one waits for its receiving call first."""
        if transfer in self._late:
            self._made.add(transfer)
        else:
            self._open[transfer.source][transfer] = self._open[transfer.target][transfer] = None

    def _has_all(self, call: _Call, mesh: int) -> bool:
        """Returns whether a mesh has all operands of its next call.

        First begins the late transfers that this call takes and whose values exist, and performs those that can take
        place at once.
        """
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
        """Performs the open transfers of `meshes` whose two ends are free or in `beside`.

        Returns the meshes that received a value.
        """
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
    """Returns `actions` with each receive of `meshes` moved in front of the call before it.

    A receive stays where it is if a send of the same mesh stands between that call and the receive.
    """
    behind: dict[int, int | None] = {}
    places: list[tuple[int, int, int]] = []
    for number, (mesh, what) in enumerate(actions):
        receives = isinstance(what, MeshTransfer) and what.target == mesh
        call = behind.get(mesh) if receives and mesh in meshes else None
        places.append((number, 1, 0) if call is None else (call, 0, number))
        if not receives:
            behind[mesh] = None if isinstance(what, MeshTransfer) else number
    return [event for _, event in sorted(zip(places, actions, strict=True), key=itemgetter(0))]
