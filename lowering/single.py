"""Turns a function with stage marks and no loop into a loop of one microbatch, which the passes can cut into stages."""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, jaxpr_as_fun, jaxprs_in_params

from jaxpp._compat import closed_over_as_arguments
from jaxpp._keys import bits_of, keys_of
from jaxpp.lowering.marks import BACKWARD, FORWARD, mark_p, mark_stage_end
from jaxpp.lowering.microbatch_loop import loop_p
from jaxpp.lowering.reductions import filled, type_for_op
from jaxpp.schedules import Placement, Schedule, Task


def in_one_microbatch(fun: Callable[..., Any], meshes: int, stages: int | None = None) -> Callable[..., Any]:
    """Returns `fun` with its marks, and the operations that they need, in a loop of one microbatch with a schedule.

    Operations on which no mark depends (the weight gradients, the optimizer) stand after the loop, and run on the
    meshes of their operands. With `n` marks there are `n` or `n + 1` stages. There are `n + 1` if `stages` is that, or
    if `stages` is None and only `n + 1` is a multiple of the number of meshes. Stage i runs on mesh i modulo the number
    of meshes.

    Args:
        fun: a function of arrays with stage marks.
        meshes: the number of meshes.
        stages: the number of stages.

    Raises (when traced):
        ValueError: there is no mark, a loop over microbatches, or another number of marks.
    """

    @functools.wraps(fun)
    def looped(*args: Any, **kwargs: Any) -> Any:
        traced, shapes = jax.make_jaxpr(lambda: fun(*args, **kwargs), return_shape=True)()
        phases = list(_phases(traced.jaxpr))
        # A backward that computes a forward again (jax.checkpoint) marks the same stages; the forward may be gone.
        forwards = max(phases.count((FORWARD, is_again)) for is_again in (False, True))
        count = _stages(forwards, meshes, stages)
        if count > forwards and BACKWARD not in dict(phases):
            traced = _marked_results(traced)
        results = _run(traced, str(_schedule(count, meshes)))
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return looped


def _stages(marks: int, meshes: int, wanted: int | None) -> int:
    if not marks:
        raise ValueError(
            "mpmd_jit_by_yield: the function has no stage mark whose result is used; "
            "end each stage with x = jaxpp.mark_stage_end(x)"
        )
    if wanted is None:
        return marks + 1 if marks % meshes and not (marks + 1) % meshes else marks
    if wanted not in (marks, marks + 1):
        raise ValueError(
            f"mpmd_jit_by_yield: target_num_stages={wanted}, found {marks} stage mark{'s' * (marks != 1)}; "
            f"expected {wanted}, or {wanted - 1} without the last one"
        )
    return wanted


def _schedule(stages: int, meshes: int) -> Schedule:
    """Returns a schedule: all forwards, then all backwards. The meshes take the stages in turn."""
    homes = [stage % meshes for stage in range(stages)]
    rows = [
        [Task("forward", stage, 0) for stage in mine] + [Task("backward", stage, 0) for stage in reversed(mine)]
        for mine in ([s for s, home in enumerate(homes) if home == k] for k in range(min(stages, meshes)))
    ]
    return Schedule.of("one-microbatch", Placement.of(*homes), rows)


def _phases(jaxpr: Jaxpr, is_again: bool = False) -> Iterator[tuple[str, bool]]:
    """Yields for each mark its phase and whether it stands in the backward of a `jax.checkpoint`.

    Marks in jitted functions count too, and marks in a scan once for each iteration.
    """
    for eqn in jaxpr.eqns:
        if eqn.primitive is loop_p:
            raise ValueError(
                "mpmd_jit_by_yield: the function has a loop over microbatches; "
                "use mpmd_jit_with_loop, or leave out treduce"
            )
        if eqn.primitive is mark_p:
            yield eqn.params["phase"], is_again
        times = eqn.params["length"] if eqn.primitive.name == "scan" else 1
        is_backward = is_again or bool(eqn.params.get("differentiated"))
        for inner in jaxprs_in_params(eqn.params):
            yield from list(_phases(inner, is_backward)) * times


def _marks(eqn: JaxprEqn) -> bool:
    return eqn.primitive is mark_p or any(_marks(each) for inner in jaxprs_in_params(eqn.params) for each in inner.eqns)


def _marked_results(traced: ClosedJaxpr) -> ClosedJaxpr:
    """Marks the results that are computed after the last mark: the last stage computes them."""
    last = max(k for k, eqn in enumerate(traced.jaxpr.eqns) if _marks(eqn))
    after = set(traced.jaxpr.eqns[last].outvars)
    for eqn in traced.jaxpr.eqns[last + 1 :]:
        if any(var in after for var in _variables(eqn.invars)):
            after.update(eqn.outvars)
    ends = [k for k, var in enumerate(traced.jaxpr.outvars) if not isinstance(var, Literal) and var in after]

    def marked() -> list[Any]:
        results = list(jaxpr_as_fun(traced)())
        if ends:
            for k, value in zip(ends, mark_stage_end([results[k] for k in ends]), strict=True):
                results[k] = value
        return results

    return jax.make_jaxpr(marked)()


def _variables(atoms: Iterable[Any]) -> list[Any]:
    return [atom for atom in atoms if not isinstance(atom, Literal)]


def _run(traced: ClosedJaxpr, schedule: str) -> list[Any]:
    """Runs a jaxpr without arguments: the equations on which a mark depends in the loop, the others after it."""
    jaxpr = traced.jaxpr
    inside, after = _cut(jaxpr)
    made = {var for eqn in inside for var in eqn.outvars}
    used = [*(var for eqn in after for var in _variables(eqn.invars)), *_variables(jaxpr.outvars)]
    handed = list(dict.fromkeys(var for var in used if var in made))
    values = dict(zip(jaxpr.constvars, traced.consts, strict=True))
    first = _part(jaxpr, inside, handed)
    results = _loop(lambda: first(values), [var.aval for var in handed], schedule)
    values.update(zip(handed, results, strict=True))
    return _part(jaxpr, after, jaxpr.outvars)(values)


def _cut(jaxpr: Jaxpr) -> tuple[list[JaxprEqn], list[JaxprEqn]]:
    """Returns the equations on which a mark depends, and the others, each in order."""
    needed: set[Any] = set()
    inside: list[JaxprEqn] = []
    after: list[JaxprEqn] = []
    for eqn in reversed(jaxpr.eqns):
        if _marks(eqn) or any(var in needed for var in eqn.outvars):
            needed.update(_variables(eqn.invars))
            inside.append(eqn)
        else:
            after.append(eqn)
    return inside[::-1], after[::-1]


def _part(jaxpr: Jaxpr, eqns: Sequence[JaxprEqn], results: Sequence[Any]) -> Callable[[dict[Any, Any]], list[Any]]:
    """Returns these equations of a jaxpr as a function of the values of variables."""
    made = {var for eqn in eqns for var in eqn.outvars}
    used = [*(var for eqn in eqns for var in _variables(eqn.invars)), *_variables(results)]
    free = list(dict.fromkeys(var for var in used if var not in made))
    effects: Any = frozenset(effect for eqn in eqns for effect in eqn.effects)
    part = jaxpr.replace(
        constvars=[],
        invars=free,
        outvars=list(results),
        eqns=list(eqns),
        effects=effects,
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )
    return lambda values: list(jaxpr_as_fun(ClosedJaxpr(part, ()))(*(values[var] for var in free)))


def _loop(fun: Callable[[], Sequence[Any]], avals: Sequence[Any], schedule: str) -> list[Any]:
    """Runs `fun` in a loop of one microbatch, and returns its results; random keys pass as their bits."""

    def step(index: jax.Array, *_: jax.Array) -> list[jax.Array]:
        return [index + 1, *map(bits_of, fun())]

    index = jnp.int32(0)
    _, *shapes = jax.make_jaxpr(step)(index).out_avals
    initial = [filled(aval.shape, 0, type_for_op(aval)) for aval in shapes]
    body, consts = closed_over_as_arguments(jax.make_jaxpr(step)(index, *initial))
    results = loop_p.bind(*consts, *initial, body=body, length=1, schedule=schedule)
    return list(map(keys_of, results, avals))
