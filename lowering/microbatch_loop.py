"""The loop over microbatches: `treduce` and `treduce_i`."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial, wraps
from itertools import compress
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal, Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir
from jaxlib.mlir import ir

from jaxpp._compat import closed_over_as_arguments
from jaxpp._rules import register_checks, register_key_use
from jaxpp.ir import attributes as at
from jaxpp.lowering.expectation import no_expectations
from jaxpp.lowering.locations import called, check_whole, here
from jaxpp.lowering.marks import stage_numbering
from jaxpp.lowering.microbatches import explained, microbatch_count, take
from jaxpp.lowering.results import finished, reduced_results
from jaxpp.lowering.structures import check_leaves
from jaxpp.schedules.errors import ScheduleError
from jaxpp.schedules.given import as_text


def treduce(
    fn: Callable[[Any], Any],
    batch: Any,
    schedule: Any = None,
    axis: int = 0,
    operation: Any = None,
    microbatches: int | None = None,
) -> Any:
    """Maps `fn` over the microbatches of `batch` and reduces its results.

    This is the pipelined form of the following loop, for a batch of M microbatches. Under plain `jax.jit`, or with no
    jit at all, this loop itself runs.

        state = operation.state(M, fn's result)
        for i in range(M):
            state = operation.update(state, fn(batch[i]), i)

    A training step needs no more than this. The loss of a microbatch is a sum over its valid tokens, which it counts:

        def loss(weights, microbatch):  # -> (sum, count)
            ...
            return jnp.sum(losses * valid), jnp.sum(valid)

        (mean_loss, tokens), gradients = jaxpp.treduce(
            partial(jax.value_and_grad(loss, has_aux=True), weights),
            batch,
            schedule="1f1b",
            operation=((jaxpp.Mean, jaxpp.Count), jaxpp.Mean),
            microbatches=8,
        )

    `mean_loss` and `gradients` are those of all valid tokens of the batch, however many each microbatch has. `tokens`
    is their number. If the loss is a mean, `operation=jaxpp.Mean` takes the mean over the microbatches.

    Args:
        fn: takes one microbatch (`batch` without its microbatch axis) and returns a pytree of arrays.
        batch: a pytree of arrays, all of the same size along `axis`: the number of microbatches M, or with
            `microbatches` the number of rows.
        schedule: the order in which the stages run the microbatches: an object such as `schedules.Std1F1B(4)`, a name
            with or without options ("1f1b" or "gis{chunks=4}"), the path of a file, or a text. With "auto", a step
            that marks every layer measures itself, and takes the fastest cuts and schedule. None: the schedule of the
            surrounding `mpmd_jit_with_loop`.
        axis: the microbatch axis of every leaf of `batch`, or with `microbatches` the axis of its rows.
        operation: `Add`, `Mean`, `Count`, `Max`, `Concat(axis)` or an `Op` of your own (class or instance), or a pytree
            of them that is a prefix of the results of `fn`. None: `(Concat(), Add)` if `fn` returns a pair that begins
            with a scalar, as `jax.value_and_grad` does, also with `has_aux=True`; `Add` for anything but a pair.
        microbatches: the number of microbatches into which the rows of `batch` are split: row r goes to microbatch
            r % M, as its row r // M. So devices that share the rows (`PartitionSpec("data")`) keep theirs. Stacks of
            one value per row come in the order of the rows from `Concat(1)`, as [rows // M, M].

    Returns:
        A pytree with the structure of the result of `fn`.

    Warns:
        UserWarning: `batch` has as many rows as `microbatches`, and these may be microbatches already.

    Raises:
        ValueError: `batch` is empty, its leaves differ in size or lack the axis, or M does not divide it; `operation`
            does not fit the results, or is None for a pair that begins with anything but a scalar; a `Count` has no
            `Mean`, or there are two.
        TypeError: `axis` or `microbatches` is no whole number; a leaf of `batch` or of the results is not an array; a
            `Count` is no scalar; an operation changes its accumulator's type.
    """
    length = microbatch_count(batch, axis, microbatches)

    @wraps(called(fn), updated=())
    def on_slice(index: jax.Array) -> Any:
        microbatch = take(batch, index, axis, microbatches)
        with explained(microbatch, axis, length, microbatches is not None):
            return fn(microbatch)

    return _reduce(on_slice, length, schedule, operation, "treduce")


def treduce_i(fn: Callable[[jax.Array], Any], length: int, schedule: Any = None, operation: Any = None) -> Any:
    """Reduces `fn(i)` for `0 <= i < length`: `treduce` for a function of the index of the microbatch.

    Args:
        fn: takes the index of the microbatch, an int32 scalar, and returns a pytree of arrays.
        length: the number of microbatches, at least 1.
        schedule: as for `treduce`.
        operation: as for `treduce`.

    Raises:
        ValueError: `length` is below 1; `operation` does not fit the results.
        TypeError: `length` is no whole number; a result is not an array; an operation changes its accumulator's type.
    """
    check_whole("treduce_i", length=length)
    return _reduce(fn, length, schedule, operation, "treduce_i")


def _reduce(fn: Callable[[jax.Array], Any], length: int, schedule: Any, operation: Any, caller: str) -> Any:
    if length < 1:
        raise ValueError(f"{here()}{caller}: {length} microbatches; at least 1 is needed")
    index = jax.ShapeDtypeStruct((), jnp.int32)
    with stage_numbering(), no_expectations():
        traced, shapes = jax.make_jaxpr(_checked(fn, caller), return_shape=True)(index)
    every = reduced_results(traced.out_avals, shapes, operation, caller)
    kept = [not result.is_void for result in every]
    results = list(compress(every, kept))

    def update(i: jax.Array, state: Sequence[jax.Array], values: Sequence[jax.Array]) -> list[jax.Array]:
        return [i + 1, *(r.updated(s, v, i) for r, s, v in zip(results, state, values, strict=True))]

    initial = [r.initial(length) for r in results]
    body, consts = _chained(traced, kept, jax.make_jaxpr(update)(index, initial, [r.aval for r in results]))
    try:
        text = schedule_text(schedule, length)
    except ScheduleError as error:
        raise ScheduleError(f"{here()}{error}", error.where) from error
    final = iter(loop_p.bind(*consts, *initial, body=body, length=length, schedule=text))
    reduced = [result.void(length) if result.is_void else next(final) for result in every]
    return jax.tree.unflatten(jax.tree.structure(shapes), finished(every, reduced, length))


def _chained(values: ClosedJaxpr, kept: Sequence[bool], update: ClosedJaxpr) -> tuple[ClosedJaxpr, list[Any]]:
    """Returns one jaxpr that computes `values` from (index) and with them updates (index, state), and its constants.

    `kept` tells which results of `values` the update takes. Tracing the two together would trace the whole microbatch
    function once more.
    """
    first, then = values.jaxpr, update.jaxpr
    results = list(compress(first.outvars, kept))
    state = then.invars[1 : len(then.invars) - len(results)]
    given = dict(zip(then.invars, [*first.invars, *state, *results], strict=True))

    def replaced(atoms: Iterable[Any]) -> list[Any]:
        return [atom if isinstance(atom, Literal) else given.get(atom, atom) for atom in atoms]

    chained = first.replace(
        constvars=[*first.constvars, *then.constvars],
        invars=[*first.invars, *state],
        outvars=replaced(then.outvars),
        eqns=[*first.eqns, *(eqn.replace(invars=replaced(eqn.invars)) for eqn in then.eqns)],
        effects=first.effects | then.effects,
        debug_info=first.debug_info.with_unknown_names(),
        is_high=first.is_high or then.is_high,
    )
    return closed_over_as_arguments(ClosedJaxpr(chained, [*values.consts, *update.consts]))


def _checked(fn: Callable[[jax.Array], Any], caller: str) -> Callable[[jax.Array], Any]:
    """Returns `fn` with an error for a result that is not an array."""

    @wraps(called(fn), updated=())
    def checked(index: jax.Array) -> Any:
        returned = fn(index)
        check_leaves(caller, "result", returned)
        return returned

    return checked


def schedule_text(schedule: Any, length: int) -> str:
    """Returns the schedule for `length` microbatches in its text form; empty for None.

    The name of a schedule of the library stays a name, as the number of meshes is known later.

    Args:
        schedule: None, or a schedule in a form that `jaxpp.schedules.resolve` takes.
        length: the number of microbatches.
    """
    if schedule is None:
        return ""
    try:
        return as_text(schedule, microbatches=length)
    except TypeError as error:
        raise TypeError(f"{here()}{error}") from None


class _Loop(Primitive):
    """The primitive of the loop.

    If the body of a primitive has "high" primitives (as `jnp.histogram` has), JAX 0.12 wants a rule that lowers these
    first. This primitive needs none: `_lower` makes a `while` of it, which has that rule.
    """

    def is_high(self, *avals: Any, **params: Any) -> bool:
        return False


loop_p = _Loop("jaxpp_microbatch_loop")
loop_p.multiple_results = True


@loop_p.def_impl
def _plain_loop(*args: Any, body: ClosedJaxpr, length: int, schedule: str) -> Sequence[Any]:
    """Runs the loop as ordinary, differentiable JAX."""
    return _scanned(*_split(args, body), body, length)


def _scanned(
    consts: Sequence[Any], state: Sequence[Any], body: ClosedJaxpr, length: int, rows: Sequence[Any] = ()
) -> Sequence[Any]:
    """Runs the loop as a scan, over rows that its body takes as its last operands."""

    def step(carry: Sequence[Any], taken: Sequence[Any]) -> tuple[Sequence[Any], None]:
        return jaxpr_as_fun(body)(*consts, *carry, *taken), None

    final, _ = jax.lax.scan(step, [np.int32(0), *state], rows, length)
    return final[1:]


def _loop_of_rows(*args: Any, body: ClosedJaxpr, length: int, schedule: str) -> Sequence[Any]:
    """Runs the loop for JAX's check of keys: each row of an array of keys that a microbatch takes is used once.

    JAX takes a key that a loop closes over for one that is used every time. So this is a scan over the rows.
    """
    consts, state = _split(args, body)
    counter, jaxpr = body.jaxpr.invars[len(consts)], body.jaxpr
    arrays = {each for each in jaxpr.invars[: len(consts)] if jnp.issubdtype(each.aval.dtype, jax.dtypes.prng_key)}

    def takes_row(eqn: Any) -> bool:
        read = [each for each in eqn.invars if not isinstance(each, Literal)]
        if counter not in read or read[0] not in arrays or not eqn.outvars:
            return False
        array, row = read[0].aval, eqn.outvars[0].aval
        return row.dtype == array.dtype and row.size * length == array.size

    splitting: list[Any] = []  # the rows of a batch into microbatches
    for eqn in jaxpr.eqns:
        if eqn.primitive is jax.lax.reshape_p and eqn.invars[0] in arrays:
            splitting.append(eqn)
            arrays.add(eqn.outvars[0])
    taking = [eqn for eqn in jaxpr.eqns if takes_row(eqn)]
    rows, others = [eqn.outvars[0] for eqn in taking], [eqn for eqn in jaxpr.eqns if eqn not in taking]
    unnamed = jaxpr.debug_info.with_unknown_names()
    first = jaxpr.replace(eqns=[*splitting, *taking], outvars=rows, debug_info=unnamed)
    then = jaxpr.replace(eqns=others, invars=[*jaxpr.invars, *rows], debug_info=unnamed)

    def take(index: jax.Array) -> Sequence[Any]:
        return jaxpr_as_fun(ClosedJaxpr(first, body.consts))(*consts, index, *state)

    taken = jax.vmap(take)(jnp.arange(length, dtype=jnp.int32))
    return _scanned(consts, state, ClosedJaxpr(then, body.consts), length, taken)


def _counted_loop(*args: Any, body: ClosedJaxpr, length: int) -> Sequence[Any]:
    """Runs the loop with one int32 counter from 0 to `length` in steps of 1; its body is not traced again."""
    consts, state = _split(args, body)

    def unfinished(counter: Any, *_: Any) -> Any:
        return counter < length

    final = jax.lax.while_p.bind(
        *consts,
        np.int32(0),
        *state,
        cond_nconsts=0,
        cond_jaxpr=jax.make_jaxpr(unfinished)(*body.out_avals),
        body_nconsts=len(consts),
        body_jaxpr=body,
    )
    return final[1:]


def _split(args: Sequence[Any], body: ClosedJaxpr) -> tuple[Sequence[Any], Sequence[Any]]:
    n_consts = len(args) - (len(body.out_avals) - 1)  # the first result is the counter
    return args[:n_consts], args[n_consts:]


@loop_p.def_effectful_abstract_eval
def _abstract(*_: Any, body: ClosedJaxpr, **__: Any) -> tuple[list[Any], Any]:
    return list(body.out_avals[1:]), body.effects


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    active = [k for k, tangent in enumerate(tangents) if not isinstance(tangent, ad.Zero)]

    def loop(*values: Any) -> Sequence[Any]:
        args = list(primals)
        for k, value in zip(active, values, strict=True):
            args[k] = value
        return _plain_loop(*args, **params)

    return jax.jvp(loop, [primals[k] for k in active], [tangents[k] for k in active])


def _batch(
    axis: Any, args: Sequence[Any], dims: Sequence[Any], *, body: ClosedJaxpr, **params: Any
) -> tuple[Sequence[Any], list[int | None]]:
    """Maps the body, so that the loop keeps its schedule; every accumulator is mapped along its first axis."""
    count = len(body.out_avals) - 1
    if all(dim is None for dim in dims):
        return loop_p.bind(*args, body=body, **params), [None] * count
    consts, state = _split(args, body)
    fronts = zip(state, dims[len(consts) :], strict=True)
    state = [batching.bdim_at_front(value, dim, axis.size) for value, dim in fronts]
    mapped = jax.vmap(
        jaxpr_as_fun(body),
        in_axes=(*dims[: len(consts)], None, *[0] * count),
        out_axes=[None, *[0] * count],
        axis_name=axis.name,
        axis_size=axis.size,
        spmd_axis_name=axis.spmd_name,
    )
    traced = jax.make_jaxpr(mapped)(*consts, jax.ShapeDtypeStruct((), jnp.int32), *state)
    body, closed_over = closed_over_as_arguments(traced)
    return loop_p.bind(*closed_over, *consts, *state, body=body, **params), [0] * count


def _discharge(
    checked: Callable[..., Any], error: Any, args: Sequence[Any], *, body: ClosedJaxpr, **params: Any
) -> tuple[Any, Sequence[Any]]:
    """Carries the first error of `checkify` as one more accumulator: each microbatch begins without an error."""
    consts, state = _split(args, body)
    index = jax.ShapeDtypeStruct((), jnp.int32)
    traced, (found, _) = jax.make_jaxpr(partial(checked, body), return_shape=True)(*consts, index, *state)
    types, tree = jax.tree.flatten(found)
    before = len(consts) + 1

    def of_one(*operands: Any) -> list[Any]:
        errors, rest = operands[before : before + len(types)], (*operands[:before], *operands[before + len(types) :])
        results = jaxpr_as_fun(traced)(*rest)
        new = [jax.tree.unflatten(tree, values) for values in (errors, results[: len(types)])]
        merged = [value.astype(type_.dtype) for value, type_ in zip(jax.tree.leaves(_first(*new)), types, strict=True)]
        return [results[len(types)], *merged, *results[len(types) + 1 :]]

    none = [jnp.zeros(type_.shape, type_.dtype) for type_ in types]
    checking, closed_over = closed_over_as_arguments(jax.make_jaxpr(of_one)(*consts, index, *none, *state))
    results = loop_p.bind(*closed_over, *consts, *none, *state, body=checking, **params)
    return _first(error, jax.tree.unflatten(tree, results[: len(types)])), results[len(types) :]


def _first(error: Any, later: Any) -> Any:
    """Merges two errors of `checkify`: for each kind of error that `error` has not raised, takes it from `later`."""
    (raised, *known), metadata = error.tree_flatten()
    (raises, *others), more = later.tree_flatten()
    values = [dict(other) for other in others]
    for kind, is_raised in raised.items():
        for table, other, mine in zip(values, others, known, strict=True):
            both = mine[kind], other.get(kind, mine[kind])
            table[kind] = jax.tree.map(partial(jnp.where, is_raised), *both)
    flags = {kind: raised.get(kind, False) | raises.get(kind, False) for kind in {**raised, **raises}}
    return type(error).tree_unflatten({**metadata, **more}, (flags, *values))


def _lower(ctx: mlir.LoweringRuleContext, *values: ir.Value, body: ClosedJaxpr, length: int, schedule: str) -> Any:
    results = mlir.lower_fun(partial(_counted_loop, body=body, length=length))(ctx, *values)
    if not results:
        return results
    loop = results[0].owner
    while loop.name == "sdy.sharding_constraint":  # a result has a sharding where mesh axes are Explicit
        loop = loop.operands[0].owner
    loop.attributes[at.LOOP] = at.attribute_of({"length": length, "schedule": schedule})
    return results


ad.primitive_jvps[loop_p] = _jvp
register_checks(loop_p, _discharge)
register_key_use(loop_p, _loop_of_rows)
batching.fancy_primitive_batchers[loop_p] = _batch
mlir.register_lowering(loop_p, _lower)
