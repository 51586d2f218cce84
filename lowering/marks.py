"""Stage marks: where one pipeline stage ends and the next begins."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxpp.ir import boundary
from jaxpp.lowering.locations import here

FORWARD = "forward"
BACKWARD = "backward"

T = TypeVar("T")

_next_stage: ContextVar[int] = ContextVar("jaxpp_next_stage", default=0)


def mark_stage_end(x: T, name: str | None = None) -> T:
    """Say that a pipeline stage ends with `x`: what is computed from the result belongs to the next stage.

    The values are unchanged. A model of n stages has n marks (the last one on the loss or the logits), or n - 1
    when nothing follows the last stage but its loss. Differentiating a mark yields the mirrored mark on the
    gradients, so `jax.grad` of a marked function has the backward stages.

    Args:
        x: a pytree of arrays of any shape and dtype (integers, booleans and keys pass through).
        name: a label for the stage, shown in errors and traces.

    Returns:
        A pytree like `x`.

    Raises:
        ValueError: `x` holds no array.
        TypeError: a leaf of `x` is not an array; the name is not a string.
    """
    return _mark(x, name, "mark_stage_end")


def pipeline_enter_stage(x: T, name: str | None = None) -> T:
    """The older form of `mark_stage_end`: it stands between two stages, so n stages have n - 1 of them.

    Raises:
        ValueError: `x` holds no array.
        TypeError: a leaf of `x` is not an array; the name is not a string.
    """
    return _mark(x, name, "pipeline_enter_stage")


@contextmanager
def stage_numbering() -> Generator[None]:
    """Number the marks traced inside from 0 on."""
    token = _next_stage.set(0)
    try:
        yield
    finally:
        _next_stage.reset(token)


def _mark(x: Any, name: str | None, caller: str) -> Any:
    if not isinstance(name, (str, type(None))):  # pyright: ignore[reportUnnecessaryIsInstance]  # users have no checker
        raise TypeError(f"{here()}{caller}: the name of a stage is a string, found {type(name).__name__}")
    leaves, tree = jax.tree.flatten(x)
    if not leaves:
        raise ValueError(f"{here()}{caller}: its argument holds no array, so it marks nothing")
    for path, leaf in jax.tree_util.tree_leaves_with_path(x):
        if not is_array(leaf):
            where = f"x{jax.tree_util.keystr(path)}"
            raise TypeError(f"{here()}{caller}: {where} is of type {type(leaf).__name__}, not an array")
    stage = _next_stage.get()
    _next_stage.set(stage + 1)
    return jax.tree.unflatten(tree, mark_p.bind(*leaves, stage=stage, phase=FORWARD, name=name or ""))


def is_array(leaf: Any) -> bool:
    """Whether JAX takes `leaf` as an array: a jax.Array, a numeric numpy array, a Python number, a ShapeDtypeStruct."""
    try:
        jax.typeof(leaf)
    except TypeError:
        return False
    return True


mark_p = Primitive("jaxpp_mark")
mark_p.multiple_results = True


@mark_p.def_impl
def _run(*arrays: Any, **_: Any) -> list[Any]:
    return list(arrays)


@mark_p.def_abstract_eval
def _abstract(*avals: Any, **_: Any) -> list[Any]:
    return list(avals)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[list[Any], list[Any]]:
    return mark_p.bind(*primals, **params), _mark_nonzero(tangents, params)


def _transpose(cotangents: Sequence[Any], *_: Any, phase: str, **params: Any) -> list[Any]:
    mirrored = BACKWARD if phase == FORWARD else FORWARD
    return _mark_nonzero(cotangents, {"phase": mirrored, **params})


def _mark_nonzero(values: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """Mark the values that are there; symbolic zeros and float0 (of integers, booleans, keys) stay as they are."""
    there = [k for k, value in enumerate(values) if not _is_zero(value)]
    if not there:
        return list(values)
    marked = dict(zip(there, mark_p.bind(*(values[k] for k in there), **params), strict=True))
    return [marked.get(k, value) for k, value in enumerate(values)]


def _is_zero(value: Any) -> bool:
    return isinstance(value, ad.Zero) or getattr(value, "dtype", None) == jax.dtypes.float0


def _batch(args: Sequence[Any], dims: Sequence[Any], **params: Any) -> tuple[list[Any], Sequence[Any]]:
    return mark_p.bind(*args, **params), dims


def _lower(_: mlir.LoweringRuleContext, *values: ir.Value, stage: int, phase: str, name: str) -> list[ir.Value]:
    barrier = stablehlo.OptimizationBarrierOp(list(values))
    boundary.write(barrier.operation, boundary.Boundary(stage, phase, name))
    return list(barrier.results)


ad.primitive_jvps[mark_p] = _jvp
ad.primitive_transposes[mark_p] = _transpose
batching.primitive_batchers[mark_p] = _batch
mlir.register_lowering(mark_p, _lower)
