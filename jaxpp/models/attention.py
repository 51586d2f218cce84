"""`slice_attention`: a slice of the sequence attends to itself and to all earlier positions, and to nothing else."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxpp.lowering.locations import here
from jaxpp.lowering.marks import mark_stage_end
from jaxpp.lowering.structures import is_array

_NOTHING = -1e30
"""The logarithm of a sum over no keys: finite, as the difference of two infinities is not a number."""


def slice_attention(query: Any, keys: Any, values: Any, start: Any, *, exchange: bool = False) -> jax.Array:
    """Computes causal attention of one slice of a sequence, only over the keys that the slice may see.

    Late slices see more keys than early ones, and take longer. The keys are read block by block up to the end of the
    slice, with an online softmax (FlashAttention, arXiv 2205.14135). All slices of a stage are still one program.
    Scores are never kept: the gradient computes them again.

    With `exchange`, another mesh with an early slice reads a part of the keys of a late slice (SlimPipe, arXiv
    2504.14519). All slices then take equally long. The call ends the stage that makes its arguments. The part that may
    run on another mesh is a second stage, the rest of the attention a third. The result begins a fourth. This is for
    the schedule `slimpipe`. Under plain `jax.jit` and without slices it is the same function.

    Args:
        query: of the slice, [batch, positions, heads, width], floating-point.
        keys: of the whole sequence, [batch, length, key heads, width]. The rows of this slice and of all earlier ones
            are written; later rows are not read. Query head h reads key head h * key heads // heads.
        values: of the whole sequence, [batch, length, key heads, any width], written and read like `keys`.
        start: the position where the slice begins, an integer, as `scan_slices` gives it.
        exchange: whether another mesh may read a part; the slices must then be of equal lengths. Otherwise they may
            have any length; the keys are read in blocks of up to half a slice that divide the length of the sequence.

    Returns:
        [batch, positions, heads, width of the values], of the dtype of `query`. Products are accumulated, and the
        softmax is taken, in float32, or in float64 if an array is float64. It has a gradient, but no `jax.jvp`.

    Raises:
        ValueError: the shapes do not fit, the positions of a slice do not divide the length with `exchange`, or there
            are no positions, key heads or widths.
        TypeError: an array is not floating-point, `start` is no integer, or `exchange` neither true nor false.
    """
    _check(query, keys, values, start, exchange)
    positions, length = query.shape[1], keys.shape[1]
    start = jnp.asarray(start, jnp.int32)
    block = _block_size(positions, length)
    end = (start + positions + block - 1) // block
    if not exchange:
        return _attend(block, query, keys, values, start, jnp.int32(0), end)[0].astype(query.dtype)
    query, keys, values = mark_stage_end((query, keys, values))
    # The mean number of keys of a slice is half of the sequence and half a slice. The last slice, with all keys,
    # lends the most: less than half of the sequence.
    half = max(1, length // block // 2)
    lent = jnp.maximum(end - (length + positions) // (2 * block), 0)
    early = keys[:, : half * block], values[:, : half * block]
    there = _attend(block, query, *early, start, jnp.int32(0), lent)
    there = mark_stage_end(there, "slices read elsewhere")
    own = mark_stage_end(_attend(block, query, keys, values, start, lent, end), "slices read here")
    total = jnp.logaddexp(there[1], own[1])
    parts = [part * jnp.exp(sums - total)[..., None] for part, sums in (there, own)]
    return (parts[0] + parts[1]).astype(query.dtype)


def _block_size(positions: int, length: int) -> int:
    """Returns how many keys are read at once, a divisor of `length`: at most half a slice, or all of a slice."""
    if length % positions == 0:
        return positions // 2 if positions % 2 == 0 else positions
    return next(size for size in range(max(1, positions // 2), 0, -1) if length % size == 0)


def _attended(
    block: int, query: jax.Array, keys: jax.Array, values: jax.Array, start: jax.Array, first: jax.Array, end: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns the attention over the blocks from `first` to `end`, and the logarithm of each sum of exponentials.

    The first of these blocks holds a visible key for each position, so that no maximum is over masked scores only.
    """
    query, kind = _grouped(query, keys), _kind(query, keys, values)
    shape = query.shape[:4]

    def step(number: jax.Array, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        top, total, mixed = state
        scores = _scores(kind, query, _block(keys, block, number), start, number * block)
        highest = jnp.maximum(top, jnp.max(scores, axis=-1))
        weights, kept = jnp.exp(scores - highest[..., None]), jnp.exp(top - highest)
        added = _product(kind, "btgrs,bsgw->btgrw", weights.astype(values.dtype), _block(values, block, number))
        return highest, total * kept + weights.sum(-1), mixed * kept[..., None] + added

    state = jnp.full(shape, _NOTHING, kind), jnp.zeros(shape, kind), jnp.zeros((*shape, values.shape[3]), kind)
    top, total, mixed = lax.fori_loop(first, end, step, state)
    is_empty = total == 0
    total = jnp.where(is_empty, 1, total)
    sums = jnp.where(is_empty, _NOTHING, top + jnp.log(total))
    return _flat(mixed / total[..., None]), _flat(sums)


def _attend_forward(block: int, *arguments: jax.Array) -> tuple[Any, Any]:
    made = _attended(block, *arguments)
    return made, (arguments, made)


def _attend_backward(block: int, kept: Any, gradients: tuple[jax.Array, jax.Array]) -> tuple[Any, ...]:
    """Returns the gradients of query, keys and values; computes the scores again, block by block."""
    (query, keys, values, start, first, end), (mixed, sums) = kept
    of_mixed, of_sums = (_grouped(each, keys) for each in gradients)
    # A term that the gradients of all scores of a position share, as its weights sum up to 1.
    common = jnp.sum(_grouped(mixed, keys) * of_mixed, axis=-1) - of_sums
    grouped, sums = _grouped(query, keys), _grouped(sums, keys)
    of_mixed, kind = of_mixed.astype(values.dtype), _kind(query, keys, values)

    def step(number: jax.Array, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        of_query, of_keys, of_values = state
        key, value = _block(keys, block, number), _block(values, block, number)
        weights = jnp.exp(_scores(kind, grouped, key, start, number * block) - sums[..., None])
        of_weights = _product(kind, "btgrw,bsgw->btgrs", of_mixed, value)
        of_scores = (weights * (of_weights - common[..., None]) * _scale(query)).astype(query.dtype)
        of_value = _product(kind, "btgrs,btgrw->bsgw", weights.astype(values.dtype), of_mixed)
        of_key = _product(kind, "btgrs,btgrw->bsgw", of_scores, grouped)
        of_query = of_query + _product(kind, "btgrs,bsgw->btgrw", of_scores, key)
        return of_query, _write(of_keys, of_key, number * block), _write(of_values, of_value, number * block)

    state = jnp.zeros(grouped.shape, kind), jnp.zeros_like(keys), jnp.zeros_like(values)
    of_query, of_keys, of_values = lax.fori_loop(first, end, step, state)
    return _flat(of_query).astype(query.dtype), of_keys, of_values, None, None, None


_attend: Any = jax.custom_vjp(_attended, nondiff_argnums=(0,))
_attend.defvjp(_attend_forward, _attend_backward)


def _kind(*arrays: jax.Array) -> Any:
    """Returns the dtype in which products of these arrays are accumulated."""
    return jnp.float64 if any(jnp.result_type(each) == jnp.float64 for each in arrays) else jnp.float32


def _scores(kind: Any, query: jax.Array, key: jax.Array, start: jax.Array, first: jax.Array) -> jax.Array:
    """Returns the scores of a block of keys, from position `first` on, with keys after each query position masked."""
    scores = _product(kind, "btgrw,bsgw->btgrs", query, key) * _scale(query)
    seen = first + jnp.arange(key.shape[1]) <= start + jnp.arange(query.shape[1])[:, None]
    return jnp.where(seen[:, None, None, :], scores, _NOTHING)


def _scale(query: jax.Array) -> float:
    return query.shape[-1] ** -0.5


def _product(kind: Any, form: str, left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.einsum(form, left, right, preferred_element_type=kind)


def _block(rows: jax.Array, size: int, number: jax.Array) -> jax.Array:
    return lax.dynamic_slice_in_dim(rows, number * size, size, 1)


def _write(rows: jax.Array, block: jax.Array, first: jax.Array) -> jax.Array:
    return lax.dynamic_update_slice_in_dim(rows, block.astype(rows.dtype), first, 1)


def _grouped(each: jax.Array, keys: jax.Array) -> jax.Array:
    """Reshapes [batch, positions, heads, ...] to [batch, positions, key heads, heads that share one, ...]."""
    groups = keys.shape[2]
    return each.reshape(*each.shape[:2], groups, each.shape[2] // groups, *each.shape[3:])


def _flat(grouped: jax.Array) -> jax.Array:
    return grouped.reshape(*grouped.shape[:2], grouped.shape[2] * grouped.shape[3], *grouped.shape[4:])


def _check(query: Any, keys: Any, values: Any, start: Any, exchange: object) -> None:
    """Raises TypeError or ValueError for arguments that can't attend."""
    who = f"{here()}slice_attention"
    for name, array in (("query", query), ("keys", keys), ("values", values)):
        dtype = getattr(array, "dtype", type(array).__name__)
        if not (hasattr(array, "dtype") and jnp.issubdtype(array.dtype, jnp.floating)):
            raise TypeError(f"{who}: {name} is floating-point, found {dtype}")
        if array.ndim != 4:
            raise ValueError(f"{who}: {name} is [batch, positions, heads, width], found {[*array.shape]}")
    if not isinstance(exchange, bool):
        raise TypeError(f"{who}: exchange is true or false, found {exchange!r}")
    if not is_array(start):
        raise TypeError(f"{who}: start is an integer, found {start!r}")
    if jnp.ndim(start) or not jnp.issubdtype(jnp.result_type(start), jnp.integer):
        raise TypeError(f"{who}: start is an integer, found {jax.typeof(start).str_short()}")
    batch, positions, heads, width = query.shape
    length, groups = keys.shape[1:3]
    if not positions * length * groups * width:
        raise ValueError(
            f"{who}: expected at least one position, key head and width, found query {[*query.shape]}, "
            f"keys {[*keys.shape]}"
        )
    if keys.shape != (batch, length, groups, width) or values.shape[:3] != keys.shape[:3] or heads % groups:
        expected = "keys of as many sequences and the width of the query, values of as many keys, heads a multiple"
        raise ValueError(
            f"{who}: expected {expected} of the key heads, found query {[*query.shape]}, keys {[*keys.shape]}, "
            f"values {[*values.shape]}"
        )
    if not positions:
        raise ValueError(f"{who}: the slice has no positions")
    if exchange and length % positions:
        raise ValueError(
            f"{who}: the {positions} positions of a slice don't divide the {length} of the keys: slices that lend are "
            "of equal lengths"
        )
