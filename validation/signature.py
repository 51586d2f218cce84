"""The arguments and results of a step, read from a module in any of its phases."""

from dataclasses import dataclass

from jaxlib.mlir import ir

from jaxpp.ir import attributes as at
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import (
    body_of,
    callee,
    functions,
    nested,
    operands_with_captures,
    operations,
    reachable,
    values_behind,
)
from jaxpp.ir.mesh_lines import Border
from jaxpp.ir.program_form import check_borders
from jaxpp.ir.read_lines import read_lines
from jaxpp.ir.shardings import MeshAxes
from jaxpp.ir.train_loop import TrainLoopAttr


class SignatureError(PassError):
    """A module has other arguments or results than the first one."""


@dataclass(frozen=True)
class Signature:
    """The types of a step's arguments and results by number, the results' names, and the state's argument numbers."""

    arguments: dict[int, ir.Type]
    results: dict[int, ir.Type]
    names: dict[int, str]
    state: set[int]

    @classmethod
    def of(cls, module: ir.Module) -> "Signature":
        """Reads `@main`, or, without it, all mesh functions together. Raises PassError where neither exists."""
        main = public_main(module)
        if main is None:
            return cls._of_meshes(module)
        type_ = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
        infos = [entry.get("jax.result_info") for entry in at.result_attributes(main)]
        names = {n: info.value for n, info in enumerate(infos) if isinstance(info, ir.StringAttr)}
        state = _state(dict(enumerate(type_.inputs)), _seen_by_stages(module, main))
        loop = TrainLoopAttr.of(module)
        arguments, results = (
            {number: loop.of_all(number, each) if loop else each for number, each in enumerate(types)}
            for types in (type_.inputs, type_.results)
        )
        return cls(arguments, results, names, state)

    @classmethod
    def _of_meshes(cls, module: ir.Module) -> "Signature":
        if not any(at.MESH in function.attributes for function in functions(module).values()):
            raise PassError("it has neither a public function @main nor mesh functions")
        lines = read_lines(module).lines
        axes = MeshAxes.of_each(module, len(lines))
        arguments, results = (
            {border.number: _whole(border) for own in check_borders(lines, kind, axes) for border in own}
            for kind in ("argument", "result")
        )
        seen = {
            line.arguments[position].number
            for line in lines
            if line.function is not None
            for position in _seen_by_stages(module, line.function)
        }
        return cls(arguments, results, {}, _state(arguments, seen))

    def title(self, result: int) -> str:
        """Returns the name of a result in messages."""
        return f"result {result} ({self.names[result]})" if self.names.get(result) else f"result {result}"

    def check(self, now: "Signature", subject: str) -> None:
        """Raises SignatureError where another module has other types, or lacks results; it may lack arguments.

        subject: the name of that module in messages.
        """
        for what, known, found in (
            ("argument", self.arguments, now.arguments),
            ("result", self.results, now.results),
        ):
            for number, type_ in found.items():
                if known.get(number) != type_:
                    before = known.get(number, "nothing")
                    raise SignatureError(f"{subject} changed {what} {number} from {before} to {type_}")
        for number in self.results:
            if number not in now.results:
                raise SignatureError(f"{subject} lost {self.title(number)}")


def public_main(module: ir.Module) -> ir.Operation | None:
    """Returns `@main`, unless it is private or missing."""
    main = functions(module).get("main")
    private = main is not None and str(main.attributes.get("sym_visibility")) == '"private"'
    return None if private else main


def _whole(border: Border) -> ir.Type:
    """Returns the type of the step's whole argument or result, also where a mesh has one block of it."""
    if border.block is None:
        return border.type
    type_ = ir.RankedTensorType(border.type)
    rows, *rest = type_.shape
    return ir.RankedTensorType.get([rows * border.block[1], *rest], type_.element_type)


def _seen_by_stages(module: ir.Module, function: ir.Operation) -> set[int]:
    """Returns the numbers of the arguments of `function` on which a stage's computation depends.

    They are weights and the batch, but no state of an optimizer. In a module as JAX lowers it, loops and marks belong
    to stages; later, calls with `jaxpp.stage` do.
    """
    by_name, body = functions(module), body_of(function)

    def is_stage(op: ir.Operation) -> bool:
        return op.name == "stablehlo.while" or at.BOUNDARY in op.attributes or at.STAGE in op.attributes

    def runs_stage(op: ir.Operation) -> bool:
        ops = [op, *nested(op)]
        called = (name for each in ops if each.name == "func.call" for name in reachable(callee(each), by_name))
        return any(map(is_stage, ops)) or any(is_stage(inner) for name in called for inner in nested(by_name[name]))

    stages = filter(runs_stage, operations(body))
    behind = values_behind(value for op in stages for value in operands_with_captures(op))
    return {argument.arg_number for argument in body.arguments if argument in behind}


def _state(arguments: dict[int, ir.Type], seen: set[int]) -> set[int]:
    """Returns the optimizer's state: the arrays that no stage sees; empty if no stage sees any argument.

    Scalars do not count: one of them may be the learning rate.
    """
    arrays = {n for n, type_ in arguments.items() if isinstance(type_, ir.RankedTensorType) and type_.rank}
    return arrays - seen if seen else set()
