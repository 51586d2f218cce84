"""The microbatches from which each value of a program is computed."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from jaxlib.mlir import ir

from jaxpp.ir.functions import body_of, terminator, values_behind
from jaxpp.ir.program import Call, Constant, Place, Program, Receive

Behind: TypeAlias = frozenset[tuple[int, int]]
"""Microbatches, with the slices of their sequences."""


def microbatches_behind(program: Program, bodies: Mapping[str, ir.Operation]) -> Mapping[Place, Behind]:
    """Returns for each register the microbatches and slices of the tasks from which its value is computed.

    bodies: the functions of the program by name. Without its function, each result of a call depends on all operands.
    """
    found: dict[Place, Behind] = {}
    for argument in program.arguments.values():
        found.update(dict.fromkeys(argument.registers, frozenset()))
    reads = {name: _reads(op) for name, op in bodies.items()}
    lines = [iter(sequence) for sequence in program.sequences]
    sent, waiting, work = program.sent, dict[Place, list[tuple[int, int]]](), list(range(len(lines)))
    while work:
        mesh = work.pop()
        for each in lines[mesh]:
            made: Sequence[int] = ()
            if isinstance(each, Call):
                _add_call(found, mesh, each, reads.get(each.function))
                made = each.results
            elif isinstance(each, Constant):
                found[mesh, each.result] = frozenset()
                made = (each.result,)
            elif isinstance(each, Receive):
                source = sent[each.channel]
                if source not in found:
                    waiting.setdefault(source, []).append((mesh, each.result))
                    break
                found[mesh, each.result] = found[source]
                made = (each.result,)
            work += _arrived(found, waiting, [(mesh, result) for result in made])
    return found


def _arrived(found: dict[Place, Behind], waiting: dict[Place, list[Place]], made: list[Place]) -> list[int]:
    """Hands values that were made to the receives that wait for them; returns the meshes that go on."""
    meshes: list[int] = []
    while made:
        source = made.pop()
        for place in waiting.pop(source, []):
            found[place] = found[source]
            made.append(place)
            meshes.append(place[0])
    return meshes


def _add_call(found: dict[Place, Behind], mesh: int, call: Call, reads: Sequence[set[int]] | None) -> None:
    own = frozenset((task.microbatch, task.slice) for task in call.tasks)
    for number, result in enumerate(call.results):
        positions = reads[number] if reads else range(len(call.operands))
        found[mesh, result] = own.union(*(found[mesh, call.operands[position]] for position in positions))


def _reads(function: ir.Operation) -> list[set[int]]:
    """Returns for each result of a function the positions of the arguments on which it depends."""
    body = body_of(function)
    positions: dict[ir.Value, int] = {argument: number for number, argument in enumerate(body.arguments)}
    behind = (values_behind([value]) for value in terminator(body).operands)
    return [{positions[value] for value in values if value in positions} for values in behind]
