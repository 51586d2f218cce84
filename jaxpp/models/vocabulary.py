"""A vocabulary spread over the meshes: each mesh has some of its rows, and a stage of its own for them."""

import functools
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp

from jaxpp.lowering.locations import check_whole, here
from jaxpp.lowering.marks import mark_stage_end
from jaxpp.lowering.structures import is_array


def vocabulary_cross_entropy(hidden: Any, embedding: Any, targets: Any, *, shards: int) -> jax.Array:
    """Returns the cross-entropy of each target, with the logits cut over `shards` stages (arXiv 2411.05288).

    The call ends the stage that makes `hidden`. Then each shard is a stage: it computes the logits of its rows of the
    vocabulary. Only their maximum, the sum of their exponentials and the target's own logit leave it. The operations on
    the result are the last stage: mark its loss. So with p stages of layers there are p + `shards` + 1 stages, as in
    `vocab-1f1b`, which has a shard on each mesh. The rows of a shard are stored on its mesh if `shards` divides the
    vocabulary and only `vocabulary_embedding` also reads `embedding`. Otherwise every mesh has all rows. Under plain
    `jax.jit` it is the same function.

    Products are taken in the common dtype of `hidden` and `embedding`: cast one to the dtype of the other. A target
    that is no row has no logit of its own: mask its loss, `jnp.where(targets < 0, 0, losses)`.

    Args:
        hidden: the result of the last layer, [..., width], floating-point.
        embedding: [vocabulary, width]; transposed it is the head. Shards have equally many rows, or one more.
        targets: the token that follows, integers [...].
        shards: the number of shards, at most the number of rows of the vocabulary.

    Returns:
        For each target its loss in nats, float32 [...].

    Raises:
        ValueError: the shapes do not fit, or there are more shards than rows.
        TypeError: the targets are no integers, `hidden` is not floating-point, or `shards` is no whole number.
    """
    who = "vocabulary_cross_entropy"
    targets, bounds = _checked(who, "targets", targets, embedding, shards)
    if not is_array(hidden) or not jnp.issubdtype(hidden.dtype, jnp.floating):
        found = hidden.dtype if is_array(hidden) else type(hidden).__name__
        raise TypeError(f"{here()}{who}: hidden is floating-point, found {found}")
    if hidden.shape != (*targets.shape, embedding.shape[1]):
        expected = f"hidden of {[*targets.shape, embedding.shape[1]]}, by targets and embedding"
        raise ValueError(f"{here()}{who}: expected {expected}, found {[*hidden.shape]}")
    hidden, targets = mark_stage_end((hidden, targets))
    found = [
        mark_stage_end(_statistics(hidden, embedding[first:last], targets - first), f"vocabulary {number}")
        for number, (first, last) in enumerate(bounds)
    ]
    tops, sums, picked = (jnp.stack(each) for each in zip(*found, strict=True))
    top = jnp.max(tops, axis=0)
    return jnp.log(jnp.sum(sums * jnp.exp(tops - top), axis=0)) + top - jnp.sum(picked, axis=0)


def vocabulary_embedding(tokens: Any, embedding: Any, *, shards: int) -> jax.Array:
    """Returns the rows of `embedding` that the tokens name, looked up in `shards` stages, which precede all others.

    Each shard returns its own rows, and zeros elsewhere; the first stage of layers adds them up. For
    `vocab-1f1b{embedding=true}`.

    Args:
        tokens: integers [...].
        embedding: [vocabulary, width].
        shards: the number of shards, at most the number of rows of the vocabulary.

    Returns:
        [..., width], of the dtype of `embedding`: `embedding[tokens]`, to the bit; zeros for a token that is no row.

    Raises:
        ValueError: there are more shards than rows.
        TypeError: the tokens are no integers, or `shards` is no whole number.
    """
    tokens, bounds = _checked("vocabulary_embedding", "tokens", tokens, embedding, shards)
    parts: list[Any] = []
    for number, (first, last) in enumerate(bounds):
        local, is_here = _local(tokens - first, last - first)
        part = jnp.where(is_here[..., None], embedding[first:last][local], 0)
        parts.append(mark_stage_end(part, f"embedding {number}"))
    return functools.reduce(jnp.add, parts)


def _statistics(hidden: Any, rows: Any, targets: Any) -> tuple[Any, Any, Any]:
    """Returns statistics of the logits of some rows: their maximum, the sum of their exponentials, the target's logit.

    The maximum is subtracted from the logits before the exponentials. A target that is no row here has the logit 0.
    """
    logits = jnp.einsum("...w,vw->...v", hidden, rows, preferred_element_type=jnp.float32)
    top = jax.lax.stop_gradient(jnp.max(logits, axis=-1))
    local, is_here = _local(targets, rows.shape[0])
    picked = jnp.take_along_axis(logits, local[..., None], axis=-1)[..., 0]
    return top, jnp.sum(jnp.exp(logits - top[..., None]), axis=-1), jnp.where(is_here, picked, 0)


def _local(numbers: Any, count: int) -> tuple[Any, Any]:
    """Returns the indices, clipped to `count` rows, and which of them were in range."""
    return jnp.clip(numbers, 0, count - 1), (numbers >= 0) & (numbers < count)


def _checked(who: str, what: str, numbers: Any, embedding: Any, shards: int) -> tuple[Any, list[tuple[int, int]]]:
    """Returns the row indices, in a dtype without overflow in differences, and the first row and end of each shard.

    Raises TypeError or ValueError as its callers.
    """
    if not is_array(embedding):
        raise TypeError(f"{here()}{who}: embedding is of type {type(embedding).__name__}, not an array")
    numbers = jnp.asarray(numbers)
    if not jnp.issubdtype(numbers.dtype, jnp.integer):
        raise TypeError(f"{here()}{who}: {what} are integers, found {numbers.dtype}")
    check_whole(who, shards=shards)
    if shards < 1:
        raise ValueError(f"{here()}{who}: shards must be at least 1, found {shards}")
    if embedding.ndim != 2 or shards > embedding.shape[0]:
        expected = f"expected an embedding [vocabulary, width] with a row or more for each of {shards} shards"
        hint = ": take fewer shards, and a schedule of as many meshes" if embedding.ndim == 2 else ""
        raise ValueError(f"{here()}{who}: {expected}, found {[*embedding.shape]}{hint}")
    borders = [embedding.shape[0] * number // shards for number in range(shards + 1)]
    return numbers.astype(jnp.int32) if numbers.dtype.itemsize < 4 else numbers, list(pairwise(borders))
