"""What the sends of a program carry, read from the program alone."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from jaxlib.mlir import ir

from jaxpp.hlo_passes.ir import attributes as at
from jaxpp.hlo_passes.ir.functions import callee, kind_and_stage
from jaxpp.hlo_passes.ir.program import Instruction, mesh_functions, read_program, task_functions
from jaxpp.hlo_passes.ir.values import byte_size

FORWARD, BACKWARD = "forward", "backward"


@dataclass(frozen=True)
class Send:
    """One send: what it carries, of which microbatch (-1: of none), between which meshes, and how many bytes."""

    carries: str
    microbatch: int
    source: int
    target: int
    bytes: int


def sends(program: Any) -> list[Send]:
    """The sends of a `ProgramModule`.

    Each carries an `activation` (a forward made it, and a forward takes it), a `gradient` (a backward, and a backward),
    a `shared gradient` (a backward made it, and what updates a weight takes it), a `shared weight` (it is returned on
    the mesh that gets it, or cast there for its tasks), a `scalar`, or else, as no program should, its type.
    """
    module = program.module
    with module.context:
        return _Reader(module).sends()


def carried(program: Any) -> Counter[str]:
    """How many sends carry what."""
    return Counter(send.carries for send in sends(program))


class _Reader:
    def __init__(self, module: ir.Module) -> None:
        self._kinds = {name: kind_and_stage(function)[0] for name, function in task_functions(module).items()}
        self._lines = read_program(module)
        self._results = [
            [ir.IntegerAttr(entry[at.RESULT]).value for entry in at.result_attributes(function)]
            for function in mesh_functions(module)
        ]
        self._places = Counter(number for results in self._results for number in results)
        self._received = {
            (each.channel, mesh): each
            for mesh, line in enumerate(self._lines)
            for each in line
            if each.name == "stablehlo.recv"
        }

    def sends(self) -> list[Send]:
        found: list[Send] = []
        for mesh, line in enumerate(self._lines):
            made = {result: each for each in line for result in each.results}
            for each in line:
                if each.name != "stablehlo.send":
                    continue
                value = each.operands[0]
                maker = made.get(value)
                tasks = list(maker.tasks) if maker is not None else []
                carries = self._carries(value, maker, each)
                found.append(Send(carries, tasks[0][1] if tasks else -1, mesh, each.target, byte_size(value.type)))
        return found

    def _carries(self, value: ir.Value, maker: Instruction | None, send: Instruction) -> str:
        type_ = ir.RankedTensorType(value.type)
        if all(size == 1 for size in type_.shape):
            return "scalar"
        made = self._kind(maker.op) if maker is not None else "argument"
        uses = list(self._received[send.channel, send.target].results[0].uses)
        taken = {self._kind(use.owner.operation) for use in uses}
        returned = [
            self._places[self._results[send.target][use.operand_number]]
            for use in uses
            if use.owner.operation.name == "func.return"
        ]
        if made == FORWARD and FORWARD in taken:
            return "activation"
        if made == BACKWARD and taken == {BACKWARD}:
            return "gradient"
        if made == BACKWARD and taken == {"after"}:
            return "shared gradient"
        if (made == "after" and returned and min(returned) > 1) or (made == "before" and taken <= {FORWARD, BACKWARD}):
            return "shared weight"
        return f"{type_} from {made} to {', '.join(sorted(taken))}"

    def _kind(self, op: ir.Operation) -> str:
        if op.name != "func.call":
            return op.name
        kind = self._kinds[callee(op)]
        return {"input_grad": BACKWARD, "weight_grad": BACKWARD}.get(kind, kind)
