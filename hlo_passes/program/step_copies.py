"""Copies the calls of one step for all steps, so that each step reads the results of the step before."""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, sdy, stablehlo

from jaxpp.hlo_passes.program.stacks import Stacks
from jaxpp.ir import attributes as at
from jaxpp.ir.build import constant
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import body_of, call, create, main_of, terminator
from jaxpp.ir.kinds import AROUND, form_of
from jaxpp.ir.mesh_functions import on_meshes, tasks_of_call
from jaxpp.ir.numbering import kind_of
from jaxpp.ir.ops import shape_of
from jaxpp.ir.phases import main_line
from jaxpp.ir.rows import concatenation, stack_type
from jaxpp.ir.shardings import Shardings, boundary_attributes
from jaxpp.ir.steps import MainLine, Step
from jaxpp.ir.train_loop import TrainLoopAttr
from jaxpp.ir.values import closure, defining_op


class CallOfStep(NamedTuple):
    """The copy for `step` of the call with index `number` in the `@main` of one step."""

    step: int
    number: int


class StepCopies:
    """A writer of the `@main` of all steps, next to the `@main` of one step.

    Attributes:
        calls: the calls of one step, in order.
        microbatches: the number of microbatches in a step.
    """

    def __init__(self, module: ir.Module, loop: TrainLoopAttr, steps: Sequence[Step]) -> None:
        self._module, self._loop = module, loop
        self.calls = [step for step in steps if step.function is not None]
        self._makers = {result: number for number, call in enumerate(self.calls) for result in call.results}
        self._main = main_of(module)
        self._arguments = list(body_of(self._main).arguments)
        self._returned = list(terminator(body_of(self._main)).operands)
        self._stacks = Stacks.of(self._main)
        self._stacks.check_others(steps)
        self._tables = at.argument_attributes(self._main), at.result_attributes(self._main)
        self._shardings = Shardings(module)
        self._check()
        self.microbatches = 1 + max(
            (number for call in self.calls for number in at.several(call.op, at.MICROBATCH) or ()), default=-1
        )
        types = [loop.of_all(n, value.type) for n, value in enumerate(self._arguments)]
        results = [loop.of_all(n, value.type) for n, value in enumerate(self._returned)]
        self._made = create(module, "main_of_all_steps", types, results, {}, visibility="public", before=self._main)
        self._ip = ir.InsertionPoint(body_of(self._made))
        self._copies: dict[CallOfStep, ir.Operation] = {}
        self._blocks: dict[ir.Value, ir.Value] = {}
        self._asked: list[CallOfStep] = []  # the calls being copied; each is read by the one before it
        self._constants: dict[Hashable, ir.Value] = {}
        self._batches: dict[tuple[int, int], ir.Value] = {}
        self._slicers = self._slicing_functions()

    def _check(self) -> None:
        """Checks that the state has the same blocks in a step's arguments and results, and that no metric has blocks.

        Raises PassError otherwise.
        """
        results = self._stacks.results
        for number, entry in enumerate(self._tables[1]):
            is_state = number < self._loop.state
            homes = self._stacks.arguments.get(self._arguments[number]) if is_state else None
            if (results[number].homes if number in results else None) != homes:
                name = entry.get("jax.result_info")
                title = f" ({name.value})" if isinstance(name, ir.StringAttr) else ""
                what = "at its start and at its end" if is_state else "as a metric"
                raise PassError(
                    f"result {number}{title} of a step: a train_loop can't keep stacked layers in blocks {what}",
                    location=self._main.location,
                    hint="read all of its rows layer by layer, or return them one by one",
                )

    def needs(self, one: CallOfStep) -> set[CallOfStep]:
        """Returns the calls whose results a call reads, directly or through `before` functions, which are omitted."""

        def is_before(call: CallOfStep) -> bool:
            return self.calls[call.number].kind == AROUND[0]

        def makers(call: CallOfStep) -> list[CallOfStep]:
            values = self.calls[call.number].operands
            return [made for value in values if (made := self._maker(call.step, value)) is not None]

        found = closure(makers(one), lambda call: makers(call) if is_before(call) else ())
        return {call for call in found if not is_before(call)}

    def _maker(self, step: int, value: ir.Value) -> CallOfStep | None:
        """Returns the call that makes `value` of a step, perhaps in an earlier step; None if no call does."""
        step, value = self._source(step, value)
        return CallOfStep(step, self._makers[value]) if value in self._makers else None

    def _source(self, step: int, value: ir.Value) -> tuple[int, ir.Value]:
        """Traces a value of a step back to where it is made; returns the step and the value there.

        The value is an argument or a block of the first step, a batch, a constant, or the result of a call.
        """
        while True:
            number, block = self._number_of_state(value), self._stacks.blocks.get(value)
            if number is None or step == 0:
                return step, value
            step -= 1
            value = self._returned[number]
            if block is not None:
                value = self._stacks.results[number].op.operands[block]

    def emit(self, one: CallOfStep) -> ir.Operation:
        """Copies a call, and before it the calls that it reads unless they are copied already; returns the copy.

        Raises PassError if it reads a required task that is not copied yet.
        """
        if one in self._copies:
            return self._copies[one]
        step, call = one.step, self.calls[one.number]
        self._asked.append(one)
        operands = [self._value(one, value) for value in call.operands]
        self._asked.pop()
        copy = call.op.clone(self._ip).operation
        for number, value in enumerate(operands):
            copy.operands[number] = value
        if numbers := at.several(call.op, at.MICROBATCH):
            copy.attributes[at.MICROBATCH] = at.one_or_several([n + step * self.microbatches for n in numbers])
        self._copies[one] = copy
        return copy

    def _value(self, user: CallOfStep | None, value: ir.Value, step: int | None = None) -> ir.Value:
        """Returns the value in the function of all steps for `value` of `user`'s step, or of `step` without a user."""
        step, value = self._source(user.step if user else step or 0, value)
        op = defining_op(value)
        if op is None:
            number = ir.BlockArgument(value).arg_number
            return body_of(self._made).arguments[number] if number < self._loop.state else self._batch(step, number)
        if op.name == "stablehlo.constant":
            return self._constant(op)
        if value not in self._makers:  # a value that is a block of a stack
            if value not in self._blocks:
                copy = op.clone(self._ip).operation
                copy.operands[0] = body_of(self._made).arguments[ir.BlockArgument(op.operands[0]).arg_number]
                self._blocks[value] = copy.results[0]
            return self._blocks[value]
        made = CallOfStep(step, self._makers[value])
        kind = self.calls[made.number].kind
        if (
            user is not None
            and made not in self._copies
            and kind not in AROUND
            and not form_of(kind.split("+")[0]).optional
        ):
            raise self._too_late(made, ir.OpResult(value).result_number)
        return self.emit(made).results[ir.OpResult(value).result_number]

    def _too_late(self, missing: CallOfStep, result: int) -> PassError:
        """Returns the error for a task that needs a result of a task that the schedule runs later.

        The first task may need the result through updates between them.
        """
        task, *between = self._asked
        location = self.calls[task.number].op.location
        function = self.calls[missing.number].function
        if function is not None and at.PER_RUN in at.result_attributes(function)[result]:
            return PassError(
                f"gather_weights is 'ahead', but {self.named(missing)}, which gathers weights for {self.named(task)}, "
                "runs behind it: this step has its tasks in another order than step 0",
                location=location,
                hint='take gather_weights="chunk"',
            )
        message = f"{self.named(task)} needs a value of {self.named(missing)}, which the schedule runs later"
        hint = "a schedule of all steps needs a delay of as many updates as it overlaps steps"
        if between:
            update = between[0]
            made = f"what {self.named(update)} makes of {self.named(missing)}"
            message = f"{self.named(task)} reads {made}, which the schedule runs later"
            if task.step - update.step <= self._loop.delay:
                hint = self._of_state([*self._asked, missing])
        return PassError(message, location=location, hint=hint)

    def _of_state(self, chain: Sequence[CallOfStep]) -> str:
        """Returns a hint that names the part of the state that the first call of `chain` reads too early.

        Each call in `chain` reads a result of the next one.
        """
        links = pairwise(chain)
        reads = (
            number
            for user, made in links
            for value in self.calls[user.number].operands
            if (number := self._number_of_state(value)) is not None and self._maker(user.step, value) == made
        )
        number = next(reads, None)
        handed_on = {self._number_of_state(value) for value in self._returned[: self._loop.state]}
        if number is None or number in handed_on:  # the weights of this step are the next step's older weights
            return "with a delay take gradients of the older weights, the step's third argument"
        info = self._tables[1][number].get("jax.result_info")
        name = info.value.replace("result[0][0]", "state", 1) if isinstance(info, ir.StringAttr) else f"result {number}"
        return (
            f"with a delay make {name}, which it reads, of what needs no gradient of its step: "
            "outside of jaxpp.expect, if it stands in one"
        )

    def _number_of_state(self, value: ir.Value) -> int | None:
        """Returns the index of the state argument that is `value` or has it as a block; None if it is not state."""
        op = defining_op(value)
        if op is not None and value in self._stacks.blocks:
            value = op.operands[0]
        number = None if defining_op(value) is not None else ir.BlockArgument(value).arg_number
        return number if number is not None and number < self._loop.state else None

    def named(self, one: CallOfStep) -> str:
        """Returns the name of a call for messages: `the forward of stage 0 for microbatch 3 of step 1`."""
        call = self.calls[one.number]
        if call.kind in AROUND:
            return f"the update of step {one.step}"
        task = tasks_of_call(call.op, call.kind)[0]
        return f"the {task.kind} of stage {task.stage} for microbatch {task.microbatch} of step {one.step}"

    def _constant(self, op: ir.Operation) -> ir.Value:
        key = kind_of(op)[0]
        if key not in self._constants:
            self._constants[key] = op.clone(self._ip).operation.results[0]
        return self._constants[key]

    def _slicing_functions(self) -> dict[int, tuple[ir.Operation, list[int]]]:
        """Makes the functions that slice one step's part of the batches: one for all batches on the same meshes.

        Returns for the index of each batch its function, and the indices of all batches that this function slices.
        """
        index = ir.RankedTensorType.get([], ir.IntegerType.get_signless(32))
        found: dict[int, tuple[ir.Operation, list[int]]] = {}
        for meshes, numbers in self._by_meshes(self._tables[0]).items():
            name = "_".join(["batch", *map(str, meshes)])
            ones = [self._arguments[number] for number in numbers]
            wholes = [self._loop.of_all(number, one.type) for number, one in zip(numbers, ones, strict=True)]
            function = create(
                self._module, name, [*wholes, index], [one.type for one in ones], {at.KIND: ir.StringAttr.get("before")}
            )
            at.set_tables(function, [*map(self._along_steps, ones), {}], boundary_attributes(self._shardings, ones))
            *values, position = body_of(function).arguments
            ip = ir.InsertionPoint(body_of(function))
            zero = constant(index, 0, ip=ip)
            returned: list[ir.Value] = []
            for value, one in zip(values, ones, strict=True):
                shape = shape_of(one)
                starts = [position, *[zero] * len(shape)]
                taken = stablehlo.dynamic_slice(value, starts, [1, *shape], ip=ip)
                returned.append(stablehlo.reshape(one.type, taken, ip=ip))
            func.return_(returned, ip=ip)
            found |= dict.fromkeys(numbers, (function, numbers))
        return found

    def _by_meshes(self, table: Sequence[Mapping[str, ir.Attribute]]) -> dict[tuple[int, ...], list[int]]:
        """Groups batches or metrics, by index, by their meshes; omits values that are on no mesh."""
        groups = defaultdict[tuple[int, ...], list[int]](list)
        for number in range(self._loop.state, len(table)):
            if meshes := tuple(at.numbers(table[number][at.MESHES])):
                groups[meshes].append(number)
        return groups

    def _batch(self, step: int, number: int) -> ir.Value:
        if (step, number) not in self._batches:
            function, numbers = self._slicers[number]
            arguments = body_of(self._made).arguments
            operands = [*(arguments[each] for each in numbers), self._index(step)]
            op = self._call(function, operands, at.numbers(self._tables[0][number][at.MESHES]))
            self._batches |= {(step, each): value for each, value in zip(numbers, op.results, strict=True)}
        return self._batches[step, number]

    def _index(self, step: int) -> ir.Value:
        if step not in self._constants:
            type_ = ir.RankedTensorType.get([], ir.IntegerType.get_signless(32))
            self._constants[step] = constant(type_, step, ip=self._ip)
        return self._constants[step]

    def _call(self, function: ir.Operation, operands: Sequence[ir.Value], meshes: Sequence[int]) -> ir.Operation:
        return call(function, operands, on_meshes(meshes), self._ip, self._main.location)

    def _along_steps(self, value: ir.Value) -> dict[str, ir.Attribute]:
        """Returns the sharding of a stack that has one `value` per step along an unsharded first dimension."""
        found = self._shardings.of(value)
        if found is None:
            return {}
        one = sdy.TensorShardingAttr(found)
        steps = sdy.DimensionShardingAttr.get([], True)
        return {at.SHARDING: sdy.TensorShardingAttr.get(one.mesh_or_ref, [steps, *one.dimension_shardings])}

    def finish(self) -> MainLine:
        """Makes the new function return the last step's state and all metrics, and puts it in the place of `@main`.

        Returns the new `@main`.
        """
        last, state = self._loop.steps - 1, self._loop.state
        returned = [self._result(number, last) for number in range(state)] + self._metrics()
        func.return_(returned, ip=self._ip, loc=self._main.location)
        arguments, results = self._tables
        for table, values in ((arguments, self._arguments), (results, self._returned)):
            for entry, value in list(zip(table, values, strict=True))[state:]:
                entry.pop(at.SHARDING, None)  # has one dimension too few; `_along_steps` may find none
                entry.update(self._along_steps(value))
                if at.ALIAS in entry:  # the type of the aliased result has changed
                    del entry[at.ALIAS]
                    entry[at.DONOR] = ir.BoolAttr.get(True)
        at.set_tables(self._made, arguments, results)
        self._main.erase()
        self._made.attributes["sym_name"] = ir.StringAttr.get("main")
        return main_line(
            self._module, map(Step.of, [op.operation for op in body_of(self._made).operations][:-1]), placed=True
        )

    def _result(self, number: int, step: int) -> ir.Value:
        if number not in self._stacks.results:
            return self._value(None, self._returned[number], step)
        op = self._stacks.results[number].op
        blocks = [self._value(None, block, step) for block in op.operands]
        copy = op.clone(self._ip).operation
        for position, block in enumerate(blocks):
            copy.operands[position] = block
        return copy.results[0]

    def _metrics(self) -> list[ir.Value]:
        """Stacks each result that is not state over the steps, on its own meshes; returns the stacks in order."""
        found: dict[int, ir.Value] = {}
        for meshes, numbers in self._by_meshes(self._tables[1]).items():
            ones = [self._returned[number] for number in numbers]
            every = [self._value(None, one, step) for one in ones for step in range(self._loop.steps)]
            wholes = [self._loop.of_all(number, one.type) for number, one in zip(numbers, ones, strict=True)]
            name = "_".join(["metrics", *map(str, meshes)])
            function = create(
                self._module, name, [value.type for value in every], wholes, {at.KIND: ir.StringAttr.get("after")}
            )
            entries = boundary_attributes(self._shardings, [one for one in ones for _ in range(self._loop.steps)])
            at.set_tables(function, entries, list(map(self._along_steps, ones)))
            ip = ir.InsertionPoint(body_of(function))
            rows = [stablehlo.reshape(stack_type(value.type, 1), value, ip=ip) for value in body_of(function).arguments]
            size = self._loop.steps
            stacked = [concatenation(rows[n * size : (n + 1) * size], 0, ip) for n in range(len(ones))]
            func.return_(stacked, ip=ip)
            found |= zip(numbers, self._call(function, every, meshes).results, strict=True)
        return [found[number] for number in range(self._loop.state, len(self._returned))]
