"""How much is alive at once along one mesh's sequence."""

import sys
from collections.abc import Container, Sequence, Set
from dataclasses import dataclass
from itertools import accumulate, chain

from jaxpp.ir.kinds import form_of
from jaxpp.ir.program import Call, Constant, Instruction, Program, Receive, Send
from jaxpp.ir.tensors import TensorSpec

_ANY = range(sys.maxsize)
"""The microbatches of a value that came from another mesh: it may be any."""


@dataclass(frozen=True)
class Peak:
    """The most that is alive at once on one mesh: bytes on each device, and microbatches with residuals.

    host_bytes: of the values in the memory of the host, which `bytes` and `activations` don't count.
    """

    bytes: int
    activations: int
    host_bytes: int


def peaks_of(program: Program) -> list[Peak]:
    """The peak of each mesh, arguments and constants included."""
    calls = (each for sequence in program.sequences for each in sequence if isinstance(each, Call))
    making = (each for each in calls if each.fused or each.kind == "recompute")
    remade = {task[1:] for each in making for task in each.tasks if task[0] == "recompute"}
    return [_peak_of(program, mesh, remade) for mesh in range(program.meshes)]


def _peak_of(program: Program, mesh: int, remade: Set[tuple[int, int]]) -> Peak:
    sequence = program.sequences[mesh]
    specs = program.registers[mesh]
    known = {id(spec): program.shard_bytes(mesh, spec) for spec in {id(spec): spec for spec in specs}.values()}
    sizes = [known[id(spec)] for spec in specs]  # the reader has one object for all equal ones; to hash one takes long
    here, host = ([size[pool] for size in sizes] for pool in (0, 1))
    given = [register for each in program.arguments.values() for at, register in each.registers if at == mesh]
    return Peak(
        _peak_bytes(sequence, here, given),
        _Activations(sequence, specs, remade).peak(),
        _peak_bytes(sequence, host, given) if any(host) else 0,
    )


def _peak_bytes(sequence: Sequence[Instruction], sizes: Sequence[int], given: Sequence[int]) -> int:
    alive = peak = sum(sizes[register] for register in given)
    for each in sequence:
        if isinstance(each, Call):
            alive += sum([sizes[register] for register in each.results])
            peak = max(peak, alive)
            alive -= sum([sizes[register] for register in each.frees])
        elif isinstance(each, Send):
            alive -= sum([sizes[register] for register in each.frees])
        else:
            alive += sizes[each.result]
            peak = max(peak, alive)
    return peak


class _Activations:
    """The (stage, microbatch) whose residuals are alive.

    A residual is what a call of a microbatch received or made, and a later call of the same stage and microbatch uses:
    what the forward hands to the backward, and the input gradient to the weight gradient. The residuals of a microbatch
    are alive from the call that makes or first reads one of them until the last that reads one; from its recompute on,
    if it has one, even where what that reads was moved; and not while they are in the memory of the host. Those that
    are evicted are alive on their mesh in the forward, on the other one until they are sent back, and from the load on.

    remade: the (stage, microbatch) that are recomputed, on any mesh.
    """

    def __init__(
        self, sequence: Sequence[Instruction], specs: Sequence[TensorSpec], remade: Set[tuple[int, int]]
    ) -> None:
        self._end, self._specs, self._remade = len(sequence), specs, remade
        self._microbatches: list[Container[int]] = [()] * len(specs)
        self._death: dict[int, int] = {}
        self._known: dict[tuple[int, int], dict[int, int]] = {}
        """Of each (stage, microbatch) the registers that it read or made, with the index of the call that did first."""
        self._kept: dict[tuple[int, int], list[tuple[int, int]]] = {}
        """Of each (stage, microbatch) the (index, register) of its residuals: from which call on each is alive."""
        self._last: dict[tuple[tuple[int, int], int], int] = {}
        """Of each (stage, microbatch) and register the last call of theirs that read it: another stage may later."""
        self._forwards: dict[tuple[int, int], int] = {}
        self._evicted: list[tuple[int, int]] = []
        """(index, index) of each forward whose residuals leave right after it."""
        for index, each in enumerate(sequence):
            if isinstance(each, Receive):
                self._microbatches[each.result] = _ANY
            elif not isinstance(each, Constant):
                for register in each.frees:
                    self._death[register] = index
                if isinstance(each, Call):
                    self._run(index, each)

    def _run(self, index: int, call: Call) -> None:
        here = [microbatch for _, _, microbatch in call.tasks]
        for register in call.results:
            self._microbatches[register] = here
        for kind, stage, microbatch in call.tasks:
            # A sum that earlier microbatches added to is none of this one's.
            own = [register for register in call.operands if microbatch in self._microbatches[register]]
            self._task(index, kind, (stage, microbatch), own, call.results)

    def _task(self, index: int, kind: str, unit: tuple[int, int], own: list[int], results: Sequence[int]) -> None:
        since = self._known.get(unit)
        if since is None:
            since = self._known[unit] = dict[int, int]()
        elif kind == "recompute":  # what it reads is none of the residuals that it makes
            for register in own:
                since.pop(register, None)
        moved = unit in self._remade and form_of(kind).is_copy
        again = [(since[r], r) for r in own if r in since and not self._specs[r].memory and not moved]
        if kind == "forward":
            self._forwards[unit] = index
        elif kind == "evict" and not moved:
            again = [(index, register) for register in results]
        elif kind == "load" and not moved and unit in self._forwards:
            self._evicted.append((self._forwards[unit], self._forwards[unit]))
        if again:
            self._kept.setdefault(unit, []).extend(again)
        self._last.update(((unit, register), index) for register in own)
        since.update(dict.fromkeys(results, index))
        for register in own:
            since.setdefault(register, index)

    def peak(self) -> int:
        """The most that are alive at once."""
        change = [0] * (self._end + 2)
        spans = (
            [(start, self._last.get((unit, each), self._death.get(each, self._end))) for start, each in kept]
            for unit, kept in self._kept.items()
        )
        for start, stop in chain(self._evicted, *map(_merged, spans)):
            change[start] += 1
            change[stop + 1] -= 1
        return max(accumulate(change))


def _merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The spans in order, those that overlap or meet in one."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
