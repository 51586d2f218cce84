"""`mark-stages`: marks the ends of stages in a module that has no marks."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxpp._compat import inline_call
from jaxpp.hlo_passes.base import Pass
from jaxpp.ir import boundary
from jaxpp.ir.boundary import Boundary
from jaxpp.ir.build import replace, rewire
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import blocks_of, callee, functions, nested, operations, reachable
from jaxpp.ir.locations import is_backward, is_in_scope
from jaxpp.ir.numbered import Numbered

_BODIES = ("func.func", "stablehlo.while")
_CALL = re.compile(r"(.+)#(\d+)")


@dataclass(frozen=True)
class MarkStages(Pass):
    """Puts stage marks into a training step that was lowered without any.

    A stage ends after each of the given scopes. JAX writes `jax.named_scope("layer0")` into the locations of the
    operations: `jvp(layer0)` in the forward, and `transpose(jvp(layer0))` in the backward. A jitted function `layer` is
    the scope `layer`, and `layer#1` is the second of its calls.

    The forward mark takes the values of the scope that later operations of the forward read. The backward mark takes
    the gradients that the backward of the scope reads, or the backward after it. A forward alone gets no backward
    marks. The last stage needs no scope.

    Functions with operations of the scopes are inlined, so that the forward and the backward are in one block.

    Preconditions: the operations have their locations, and there are no marks. So the pass stands before
    `inline-calls`, which loses the names of calls.

    Options:
        after: the scopes, in the order of the forward: "layer0 layer1", or "layer#0 layer#1".

    ```mlir
    %0 = stablehlo.tanh %x loc("jvp(layer0)/tanh")
    %1 = stablehlo.tanh %0 loc("jvp(layer1)/tanh")
    %3 = stablehlo.multiply %2, %0 loc("transpose(jvp(layer1))/mul")
    %4 = stablehlo.multiply %3, %x loc("transpose(jvp(layer0))/mul")
    ==>
    %0 = stablehlo.tanh %x
    %m = stablehlo.optimization_barrier {jaxpp.boundary = {phase = "forward", stage = 0, ...}} %0
    %1 = stablehlo.tanh %m
    %3 = stablehlo.multiply %2, %m
    %g = stablehlo.optimization_barrier {jaxpp.boundary = {phase = "backward", stage = 0, ...}} %3
    %4 = stablehlo.multiply %g, %x
    ```
    """

    after: str

    def run(self, module: ir.Module) -> None:
        """Marks the stages of `module`. Raises PassError for a scope that is not there, or can't be marked."""
        every = list(nested(module.operation))
        marked = next((op for op in every if boundary.is_mark(op)), None)
        if marked is not None:
            hint = "mark a module in one way alone"
            raise PassError("mark-stages found a stage mark", location=marked.location, hint=hint)
        names = self.after.split()
        if not names:
            hint = 'give the scopes of all stages but the last: "layer0 layer1" or "layer#0 layer#1"'
            raise PassError("mark-stages: after names no scope", hint=hint)
        backward = _inline_scopes(module, names)
        inside = [op for op in nested(module.operation) if len(op.results) and _is_in_body(op)]
        _mark([_Scope.of(name, inside, backward) for name in names], backward)


class _Backward:
    """The operations of the backward: by their names, or as parts of functions that the backward calls."""

    def __init__(self) -> None:
        self._inlined: set[ir.Value] = set()

    def has(self, op: ir.Operation) -> bool:
        """Whether an operation is in the backward."""
        return is_backward(op.location) or (len(op.results) > 0 and op.results[0] in self._inlined)

    def inline(self, call: ir.Operation, ops: Iterable[ir.Operation]) -> None:
        """Notes the operations that replace a call, before it is erased."""
        if self.has(call):
            self._inlined.update(result for op in ops for result in op.results)
        self._inlined.difference_update(call.results)


def _inline_scopes(module: ir.Module, names: Sequence[str]) -> _Backward:
    """Inlines the functions that have operations of the scopes, as the forward and the backward need one block.

    Inside of a function JAX begins the names anew, so only its calls say whether it is part of the backward.
    """
    by_name, backward = functions(module), _Backward()
    inner = {name: list(nested(function)) for name, function in by_name.items()}
    calls = {name: {callee(op) for op in ops if op.name == "func.call"} for name, ops in inner.items()}
    holders = {name for name, ops in inner.items() if any(_is_in(op, scope) for op in ops for scope in names)}
    while more := {name for name, called in calls.items() if called & holders} - holders:
        holders |= more
    roots = by_name.keys() - set[str]().union(*calls.values())
    pending = [(op, (root,)) for root in roots for op in inner[root] if op.name == "func.call"]
    while pending:
        call, path = pending.pop()
        name = callee(call)
        if name not in holders or name in path or len(blocks_of(by_name[name])) != 1:
            continue
        inlined = _inline(call, by_name[name], backward)
        pending += [(op, (*path, name)) for op in inlined if op.name == "func.call"]
    kept = {name for root in roots for name in reachable(root, by_name)}
    for name in holders - kept:
        by_name[name].erase()
    return backward


def _is_in(op: ir.Operation, name: str) -> bool:
    """Whether an operation is in a scope, or, for `layer#1`, one of the calls in the scope."""
    scope, call = _split(name)
    return (call is None or op.name == "func.call") and is_in_scope(op.location, scope)


def _inline(call: ir.Operation, function: ir.Operation, backward: _Backward) -> list[ir.Operation]:
    """Replaces a call by the body of its function; returns the new operations, with those in their regions."""
    block = call.block
    number = next(number for number, op in enumerate(operations(block)) if op == call)
    before = len(operations(block))
    with ir.InsertionPoint(call):
        values = inline_call(function, list(call.operands))
    new = operations(block)[number : number + len(operations(block)) - before]
    inlined = [inner for op in new for inner in (op, *nested(op))]
    backward.inline(call, inlined)
    replace(call, values)
    return inlined


def _is_in_body(op: ir.Operation) -> bool:
    """Whether an operation is directly in a function or a loop, and not in the region of a sum, for example."""
    return op.parent is not None and op.parent.operation.name in _BODIES


@dataclass(frozen=True)
class _Scope:
    """The operations of a scope in the forward, and in the backward."""

    name: str
    forward: Sequence[ir.Operation]
    backward: Sequence[ir.Operation]

    @staticmethod
    def of(name: str, ops: Sequence[ir.Operation], in_backward: _Backward) -> "_Scope":
        """Finds the scope `name` among `ops`. Raises PassError if its forward has no operation."""
        scope, call = _split(name)
        both: list[list[ir.Operation]] = [[], []]
        for op in ops:
            if _is_in(op, name):
                both[in_backward.has(op)].append(op)
        forward, backward = both
        if call is not None:
            if backward and len(backward) != len(forward):
                what = f"scope '{scope}' has {len(forward)} calls in the forward and {len(backward)} in the backward"
                raise PassError(f"{what}, expected as many", hint="name the scopes of the layers with jax.named_scope")
            forward, backward = forward[call : call + 1], backward[::-1][call : call + 1]
        if not forward:
            what = f"no call {call} in scope '{scope}'" if call is not None else f"no operation in scope '{scope}'"
            hint = "locations have the scopes: print them with lowered.as_text(debug_info=True)"
            raise PassError(f"the forward has {what}", hint=hint)
        return _Scope(name, forward, backward)


def _split(name: str) -> tuple[str, int | None]:
    """Returns the scope of `layer#1`, and the index of the call; None for a whole scope."""
    found = _CALL.fullmatch(name)
    return (found[1], int(found[2])) if found else (name, None)


def _mark(scopes: Sequence[_Scope], backward: _Backward) -> None:
    """Marks the end of each scope. Raises PassError."""
    block = scopes[0].forward[0].block
    for scope in scopes:
        for op in (*scope.forward, *scope.backward):
            if op.block != block:
                what = f"scope '{scope.name}' is not in the same function or loop as '{scopes[0].name}'"
                hint = "mark stages where they are written, with jaxpp.mark_stage_end"
                raise PassError(what, location=op.location, hint=hint)
    body = _MarkedBlock(scopes, Numbered(operations(block)), backward)
    # All values are found before the first mark, which changes who uses them.
    marks = [
        (Boundary(stage, phase, scope.name), values)
        for stage, scope in enumerate(scopes)
        for phase, values in (("forward", body.activations(stage)), ("backward", body.gradients(stage)))
    ]
    for mark, values in marks:
        if values:
            body.mark(mark, values)


class _MarkedBlock:
    """The block that has the scopes. Its operations are numbers."""

    def __init__(self, scopes: Sequence[_Scope], numbered: Numbered, backward: _Backward) -> None:
        """Raises PassError for scopes that share an operation, or whose forward is in another order."""
        self._scopes, self._numbered = scopes, numbered
        self._is_backward = [backward.has(op) for op in numbered.ops]
        self._stages: dict[int, int] = {}
        for stage, scope in enumerate(scopes):
            for op in (*scope.forward, *scope.backward):
                number = numbered.producers[op.results[0]]
                if self._stages.setdefault(number, stage) != stage:
                    other = scopes[self._stages[number]].name
                    what = f"an operation is in the scopes '{other}' and '{scope.name}', expected it in one"
                    raise PassError(what, location=op.location, hint="give scopes that do not contain one another")
        for number, stage in self._stages.items():
            makers = [] if self._is_backward[number] else numbered.makers[number]
            later = next((self._stages[each] for each in makers if self._stages.get(each, 0) > stage), None)
            if later is not None:
                what = f"scope '{scopes[stage].name}' reads a value of '{scopes[later].name}', which stands after it"
                raise PassError(what, location=numbered.ops[number].location, hint="give them in the forward's order")

    def _is_behind(self, number: int, stage: int) -> bool:
        """Whether an operation is in the forward or the backward of the scopes up to `stage`."""
        return self._stages.get(number, len(self._scopes)) <= stage

    def activations(self, stage: int) -> list[ir.Value]:
        """Returns the values of a scope that the later forward reads. Raises PassError if there are none."""
        end = len(self._numbered.ops) - 1  # the terminator reads results of the step, such as a metric
        found = [
            value
            for number, results in enumerate(self._numbered.results)
            if self._stages.get(number) == stage and not self._is_backward[number]
            for value in results
            if any(
                value in self._numbered.operands[user] and user != end
                for user in self._numbered.users[number]
                if not self._is_backward[user] and not self._is_behind(user, stage)
            )
        ]
        if not found:
            scope = self._scopes[stage]
            what = f"no operation of the forward reads a value of scope '{scope.name}' after it"
            hint = "the last stage needs no scope; mark a loop over layers with jaxpp.mark_stage_end"
            raise PassError(what, location=scope.forward[-1].location, hint=hint)
        return found

    def gradients(self, stage: int) -> list[ir.Value]:
        """Returns the values of the later backward that the backward from a scope on reads."""
        beyond = self._backward_from(stage)
        read = {value for number in beyond for value in self._numbered.operands[number]}
        return [
            value
            for number, results in enumerate(self._numbered.results)
            if self._is_backward[number] and number not in beyond
            for value in results
            if value in read
        ]

    def _backward_from(self, stage: int) -> set[int]:
        """Returns the operations in the backward of the scopes up to `stage`, and those that read their results."""
        found = set[int]()
        for number, makers in enumerate(self._numbered.makers):
            if self._is_backward[number] and (self._is_behind(number, stage) or not found.isdisjoint(makers)):
                found.add(number)
        return found

    def mark(self, mark: Boundary, values: Sequence[ir.Value]) -> None:
        """Puts a mark after `values`. The later operations on the other side of the mark read its results instead."""
        place = max(self._numbered.producers[value] for value in values)
        made_by = self._numbered.ops[place]
        ip = ir.InsertionPoint.after(made_by)
        barrier = stablehlo.OptimizationBarrierOp(values, loc=made_by.location, ip=ip).operation
        boundary.write(barrier, mark)
        instead = dict(zip(values, barrier.results, strict=True))
        later = range(place + 1, len(self._numbered.ops) - 1)
        if mark.phase == "forward":
            readers = [number for number in later if not self._is_behind(number, mark.stage)]
        else:
            readers = sorted(self._backward_from(mark.stage).intersection(later))
        for number in readers:
            rewire(self._numbered.ops[number], instead, uses=self._numbered.operands[number])
