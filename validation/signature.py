"""The arguments and results of a step, read from a module in any of its phases."""

from dataclasses import dataclass

from jaxlib.mlir import ir

from jaxpp.ir import attributes as at
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import functions
from jaxpp.ir.mesh_functions import mesh_functions
from jaxpp.ir.program_form import Border, read_borders
from jaxpp.ir.train_loop import TrainLoopAttr
from jaxpp.validation.reach import seen_by_stages


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
        state = _state(dict(enumerate(type_.inputs)), seen_by_stages(module, main))
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
        meshes = mesh_functions(module)
        every = read_borders(meshes, "argument")
        arguments, results = (
            {border.number: _whole(border) for line in borders for border in line}
            for borders in (every, read_borders(meshes, "result"))
        )
        seen = {
            line[position].number
            for function, line in zip(meshes, every, strict=True)
            for position in seen_by_stages(module, function)
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


def _state(arguments: dict[int, ir.Type], seen: set[int]) -> set[int]:
    """Returns the optimizer's state: the arrays that no stage sees; empty if no stage sees any argument.

    Scalars do not count: one of them may be the learning rate.
    """
    arrays = {n for n, type_ in arguments.items() if isinstance(type_, ir.RankedTensorType) and type_.rank}
    return arrays - seen if seen else set()
