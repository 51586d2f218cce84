"""What the sends of a program carry, read from the program alone."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from jaxlib.mlir import ir

from jaxpp.ir import program as program_data
from jaxpp.ir.program import Call
from jaxpp.ir.read_program import ProgramReader
from jaxpp.ir.tensors import TensorSpec

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
        self._program = ProgramReader(module).program
        self._returned = {
            place: len(result.registers) for result in self._program.results for place in result.registers
        }

    def sends(self) -> list[Send]:
        found: list[Send] = []
        for mesh, line in enumerate(self._program.sequences):
            made = {result: each for each in line if isinstance(each, Call) for result in each.results}
            for each in line:
                if isinstance(each, program_data.Send):
                    maker = made.get(each.operand)
                    microbatch = maker.tasks[0].microbatch if maker is not None and maker.tasks else -1
                    spec = self._program.registers[mesh][each.operand]
                    found.append(Send(self._carries(spec, maker, each), microbatch, mesh, each.destination, spec.bytes))
        return found

    def _carries(self, spec: TensorSpec, maker: Call | None, send: program_data.Send) -> str:
        if all(size == 1 for size in spec.shape):
            return "scalar"
        made = _kind(maker) if maker is not None else "argument"
        taken, register = set[str](), self._program.hops[send.channel].result
        for each in self._program.sequences[send.destination]:
            if isinstance(each, Call) and register in each.operands:
                taken.add(_kind(each))
            elif isinstance(each, program_data.Send) and register == each.operand:
                taken.add("send")
        places = self._returned.get((send.destination, register), 0)
        if places:
            taken.add("return")
        if made == FORWARD and FORWARD in taken:
            return "activation"
        if made == BACKWARD and taken == {BACKWARD}:
            return "gradient"
        if made == BACKWARD and taken == {"after"}:
            return "shared gradient"
        if (made == "after" and places > 1) or (made == "before" and taken <= {FORWARD, BACKWARD}):
            return "shared weight"
        return f"{spec} from {made} to {', '.join(sorted(taken))}"


def _kind(call: Call) -> str:
    return {"input_grad": BACKWARD, "weight_grad": BACKWARD}.get(call.kind, call.kind)
