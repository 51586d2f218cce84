"""How much is alive at once along one mesh's sequence."""

import sys
from collections.abc import Container, Sequence
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


def peak_of(program: Program, mesh: int) -> Peak:
    """The peak of one mesh, arguments and constants included."""
    sequence = program.sequences[mesh]
    specs = program.registers[mesh]
    known = {id(spec): program.shard_bytes(mesh, spec) for spec in {id(spec): spec for spec in specs}.values()}
    sizes = [known[id(spec)] for spec in specs]  # the reader has one object for all equal ones; to hash one takes long
    here, host = ([size[pool] for size in sizes] for pool in (0, 1))
    given = [register for each in program.arguments.values() for at, register in each.registers if at == mesh]
    return Peak(
        _peak_bytes(sequence, here, given),
        _peak_activations(sequence, specs),
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


def _peak_activations(sequence: Sequence[Instruction], specs: Sequence[TensorSpec]) -> int:
    """The most (stage, microbatch) whose residuals are alive at once.

    A residual is what a call of a microbatch received or made, and a later call of the same stage and microbatch uses:
    what the forward hands to the backward, and the input gradient to the weight gradient. The residuals of a microbatch
    are alive from the call that makes or first reads one of them until the last that reads one; from its recompute on,
    if it has one, even where what that reads was moved; and not while they are in the memory of the host. Those that
    are evicted are alive on their mesh in the forward, on the other one until they are sent back, and from the load on.
    """
    microbatches: list[Container[int]] = [()] * len(specs)
    death: dict[int, int] = {}
    known: dict[tuple[int, int], dict[int, int]] = {}
    """Of each (stage, microbatch) the registers that it read or made, with the index of the call that did so first."""
    kept: dict[tuple[int, int], list[tuple[int, int]]] = {}
    """Of each (stage, microbatch) the (index, register) of its residuals: from which call on each is alive."""
    last: dict[tuple[tuple[int, int], int], int] = {}
    """Of each (stage, microbatch) and register the last call of theirs that read it: another stage may do so later."""
    forwards: dict[tuple[int, int], int] = {}
    remade = {task[1:] for each in sequence if isinstance(each, Call) for task in each.tasks if task[0] == "recompute"}
    evicted: list[tuple[int, int]] = []
    """(index, index) of each forward whose residuals leave right after it."""
    for index, each in enumerate(sequence):
        if isinstance(each, Receive):
            microbatches[each.result] = _ANY
            continue
        if isinstance(each, Constant):
            continue
        for register in each.frees:
            death[register] = index
        if isinstance(each, Send):
            continue
        tasks = each.tasks
        here = [microbatch for _, _, microbatch in tasks]
        for register in each.results:
            microbatches[register] = here
        for kind, stage, microbatch in tasks:
            # A sum that earlier microbatches added to is none of this one's.
            own = [register for register in each.operands if microbatch in microbatches[register]]
            unit = (stage, microbatch)
            since = known.get(unit)
            if since is None:
                since = known[unit] = dict[int, int]()
            elif kind == "recompute":  # what it reads is none of the residuals that it makes
                for register in own:
                    since.pop(register, None)
            moved = unit in remade and form_of(kind).is_copy
            again = [(since[r], r) for r in own if r in since and not specs[r].memory and not moved]
            if kind == "forward":
                forwards[unit] = index
            elif kind == "evict":
                again = [(index, register) for register in each.results]
            elif kind == "load" and unit in forwards:
                evicted.append((forwards[unit], forwards[unit]))
            if again:
                kept.setdefault(unit, []).extend(again)
            last.update(((unit, register), index) for register in own)
            since.update(dict.fromkeys(each.results, index))
            for register in own:
                since.setdefault(register, index)
    end = len(sequence)
    change = [0] * (end + 2)
    spans = (
        [(start, last.get((unit, register), death.get(register, end))) for start, register in each]
        for unit, each in kept.items()
    )
    for start, stop in chain(evicted, *map(_merged, spans)):
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
