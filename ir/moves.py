"""Checks that values which leave a mesh for its host or a peer come back in their place, for their microbatch."""

from collections.abc import Sequence
from typing import NamedTuple

from jaxlib.mlir import ir

from jaxpp.ir.errors import ProgramError
from jaxpp.ir.kinds import FORMS
from jaxpp.ir.program import Call, Program, TaskName

_LEAVING = {form.back: kind for kind, form in FORMS.items() if form.back}
"""For each kind that brings values back, the kind that takes them away."""


class Move(NamedTuple):
    """A call that takes values away or brings them back, its operation, its mesh, and the registers that it reads."""

    mesh: int
    op: ir.Operation
    call: Call
    operands: Sequence[int]


def check_moves(program: Program, moves: Sequence[Move]) -> None:
    """Raises ProgramError at a call that brings back other values than its counterpart took away."""
    if not moves:
        return  # without a walk over the transfers of the whole program, which are many
    gone: dict[tuple[int, int], tuple[TaskName, int]] = {}
    for mesh, _, call, _ in moves:
        for task in call.tasks:
            if FORMS[task.kind].back:
                gone.update(((mesh, register), (task, number)) for number, register in enumerate(call.results))
    sent = {(hop.target, hop.result): (hop.source, hop.operand) for hop in program.hops.values()}
    for mesh, op, call, operands in moves:
        for task in call.tasks:
            if task.kind not in _LEAVING:
                continue
            away = task._replace(kind=_LEAVING[task.kind])
            for number, register in enumerate(operands):
                found = gone.get((mesh, register)) or gone.get(sent.get((mesh, register), (mesh, register)))
                if found != (away, number):
                    what = f"value {found[1]} of the {found[0]}" if found else f"nothing that any {away.kind} returned"
                    message = f"the {task} takes {what}, expected value {number} of the {away}"
                    raise ProgramError(message, location=op.location)
