"""Marks at the ends of pipeline stages, and at the ends of units inside of a stage."""

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxpp._keys import is_key
from jaxpp._rules import register_key_use
from jaxpp._system import setting
from jaxpp.ir import attributes as at
from jaxpp.ir import boundary
from jaxpp.ir.functions import nested
from jaxpp.lowering.locations import here, is_for_shapes, position
from jaxpp.lowering.structures import check_leaves

FORWARD = "forward"
BACKWARD = "backward"

T = TypeVar("T")

_next_stage: ContextVar[int] = ContextVar("jaxpp_next_stage", default=0)
_traced: ContextVar[list[tuple[int, str]] | None] = ContextVar("jaxpp_traced_marks", default=None)
# Parts of the keys of JAX's caches: a jitted function is traced anew for each lowering, and for each slice.
_lowering = jax.make_user_context(None)
_slice = jax.make_user_context(None)


def mark_stage_end(x: T, name: str | None = None) -> T:
    """Marks the end of a pipeline stage: operations on the result belong to the next stage.

    The values are unchanged. A model of n stages has n marks, the last one on the loss or the logits. It may have n - 1
    if only the loss follows the last stage. Differentiating a mark yields the mirrored mark on the gradients, so
    `jax.grad` of a marked function has the backward stages.

    Args:
        x: a pytree of arrays of any shape and dtype (integers, booleans and keys pass through).
        name: a label for the stage, shown in errors and traces.

    Returns:
        A pytree like `x`. Go on with it, as a mark whose result nobody uses is an error.

    Raises:
        ValueError: `x` holds no array.
        TypeError: a leaf of `x` is not an array; the name is not a string.
    """
    return _mark(x, name, "mark_stage_end")


def pipeline_enter_stage(x: T, name: str | None = None) -> T:
    """Marks the border between two stages, so that n stages have n - 1 of these marks; older form of `mark_stage_end`.

    Raises:
        ValueError: `x` holds no array.
        TypeError: a leaf of `x` is not an array; the name is not a string.
    """
    return _mark(x, name, "pipeline_enter_stage")


def mark_unit_end(x: T) -> T:
    """Marks the end of a unit of a stage: attention, an MLP, a dispatch to experts, with its collective.

    If a schedule runs a forward and a backward as one task (`dualpipe`), their units are woven. The units of one
    compute while the collectives at the ends of the other's units run (STP, arXiv 2510.27257). Otherwise these marks do
    nothing. They stand between stage marks, which end units too. Put them on a value that devices have exchanged, such
    as a product of which each device has a part, plus the value that is added to it. Differentiating a mark yields a
    mark on the gradients.

        x = jaxpp.mark_unit_end(x + attention(x))
        x = jaxpp.mark_unit_end(x + mlp(x))

    Args:
        x: a pytree of arrays of any shape and dtype (integers, booleans and keys pass through).

    Returns:
        A pytree like `x`; the values are unchanged.

    Raises:
        ValueError: `x` holds no array.
        TypeError: a leaf of `x` is not an array.
    """
    leaves, tree = _leaves(x, "mark_unit_end")
    return jax.tree.unflatten(tree, unit_p.bind(*leaves))


def stage_numbering() -> AbstractContextManager[None]:
    """Numbers the marks traced inside from 0 on."""
    return setting(_next_stage, 0)


@contextmanager
def traced_marks() -> Generator[list[tuple[int, str]]]:
    """Yields a list that gets the number and position of each mark traced inside, except under `jax.eval_shape`.

    Inside, JAX takes no jitted function from its cache: it would not trace the marks of that function again.
    """
    found: list[tuple[int, str]] = []
    with setting(_traced, found), _lowering(object()):
        yield found


def lost_marks(traced: Iterable[tuple[int, str]], module: ir.Module) -> list[str]:
    """Returns the positions of traced marks that `module` lacks.

    JAX drops an equation whose results nobody uses when it differentiates a jitted function, a scan or a checkpoint.
    """
    there = {boundary.read(op).stage for op in nested(module.operation) if boundary.is_mark(op)}
    traced = list(traced)
    kept = {position for number, position in traced if number in there}
    return [position for position in dict.fromkeys(position for _, position in traced) if position not in kept]


def marks_of_slice(number: int) -> AbstractContextManager[None]:
    """Writes the index of a slice on the marks traced inside, for slices that are in no loop."""
    return _slice(number)


def _mark(x: Any, name: str | None, caller: str) -> Any:
    if not isinstance(name, (str, type(None))):  # pyright: ignore[reportUnnecessaryIsInstance]  # users have no checker
        raise TypeError(f"{here()}{caller}: the name of a stage is a string, found {type(name).__name__}")
    leaves, tree = _leaves(x, caller)
    stage = _next_stage.get()
    _next_stage.set(stage + 1)
    if (traced := _traced.get()) is not None and not is_for_shapes():
        traced.append((stage, position()))
    return jax.tree.unflatten(
        tree, mark_p.bind(*leaves, stage=stage, phase=FORWARD, name=name or "", part=_slice.value)
    )


def _leaves(x: Any, caller: str) -> tuple[list[Any], Any]:
    """Returns the arrays of the marked pytree, and its structure. Raises ValueError or TypeError as the marks do."""
    leaves, tree = jax.tree.flatten(x)
    if not leaves:
        raise ValueError(f"{here()}{caller}: its argument holds no array, so it marks nothing")
    check_leaves(caller, "x", x)
    return leaves, tree


def _identity(*values: Any, **_: Any) -> list[Any]:
    return list(values)


def _computed(*values: Any, **_: Any) -> list[Any]:
    """Returns the values, with keys as new objects: `jax_debug_key_reuse` records on each object whether it is used."""
    return [jax.random.clone(value) if is_key(jax.typeof(value)) else value for value in values]


def _identity_primitive(
    name: str, transposed: Callable[[dict[str, Any]], dict[str, Any]], lower: Callable[..., Any]
) -> Primitive:
    """Makes a primitive that returns its arguments under every transformation.

    Args:
        name: its name.
        transposed: returns its parameters after a transposition.
        lower: its lowering rule.
    """
    primitive = Primitive(name)
    primitive.multiple_results = True
    primitive.def_impl(_computed)
    primitive.def_abstract_eval(_identity)

    def of_those_there(values: Sequence[Any], params: dict[str, Any]) -> list[Any]:
        """Binds the primitive, except to symbolic zeros and float0 (of integers, booleans, keys)."""
        there = [k for k, value in enumerate(values) if not _is_zero(value)]
        if not there:
            return list(values)
        bound = dict(zip(there, primitive.bind(*(values[k] for k in there), **params), strict=True))
        return [bound.get(k, value) for k, value in enumerate(values)]

    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[list[Any], list[Any]]:
        return primitive.bind(*primals, **params), of_those_there(tangents, params)

    def transpose(cotangents: Sequence[Any], *_: Any, **params: Any) -> list[Any]:
        return of_those_there(cotangents, transposed(params))

    def batch(args: Sequence[Any], dims: Sequence[Any], **params: Any) -> tuple[list[Any], Sequence[Any]]:
        return primitive.bind(*args, **params), dims

    ad.primitive_jvps[primitive] = jvp
    ad.primitive_transposes[primitive] = transpose
    batching.primitive_batchers[primitive] = batch
    register_key_use(primitive)
    mlir.register_lowering(primitive, lower)
    return primitive


def _is_zero(value: Any) -> bool:
    return isinstance(value, ad.Zero) or getattr(value, "dtype", None) == jax.dtypes.float0


def _mirrored(params: dict[str, Any]) -> dict[str, Any]:
    return params | {"phase": BACKWARD if params["phase"] == FORWARD else FORWARD}


def _lower_mark(
    _: mlir.LoweringRuleContext, *values: ir.Value, stage: int, phase: str, name: str, part: int | None
) -> list[ir.Value]:
    barrier = stablehlo.OptimizationBarrierOp(list(values))
    boundary.write(barrier.operation, boundary.Boundary(stage, phase, name))
    if part is not None:
        barrier.operation.attributes[at.SLICE] = at.i64(part)
    return list(barrier.results)


def _lower_unit(_: mlir.LoweringRuleContext, *values: ir.Value) -> list[ir.Value]:
    return [boundary.unit_mark(value) for value in values]


mark_p = _identity_primitive("jaxpp_mark", _mirrored, _lower_mark)
unit_p = _identity_primitive("jaxpp_unit", dict, _lower_unit)
