"""`SparseAveraging`: replicas train apart, and average some of their weights at each step, some steps later."""

import math
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxpp.lowering.prefixes import entries_per_leaf
from jaxpp.lowering.structures import is_array, leaf_names
from jaxpp.schedules.errors import whole_number


class Averaging(NamedTuple):
    """The state of `SparseAveraging` between two steps.

    Attributes:
        steps: the number of steps so far, int32[].
        flying: the averages that have not arrived, the oldest first. Each has for each leaf two arrays: the average,
            [elements], and the values of all replicas when it was taken, [replicas, elements]. For stacked layers these
            are [layers, elements] and [layers, replicas, elements].
        drift: for each leaf the moving average of how far its elements move while an average is under way.
    """

    steps: jax.Array
    flying: tuple[tuple[tuple[jax.Array, jax.Array], ...], ...]
    drift: tuple[jax.Array, ...]


@dataclass(frozen=True)
class SparseAveraging:
    """Asynchronous averaging of a part of the weights at each step (AsyncMesh, arXiv 2601.22442).

    Each replica computes gradients of its own examples, and makes its own update. No gradient is summed over the
    replicas. They are the first dimension of each leaf of the weights, sharded over the axis of the batch. A step is
    written for one replica and mapped over that dimension. Stage marks may stand in the mapped function:

        averaging = jaxpp.SparseAveraging(parts=20, delay=10)

        def step(state, batch):  # batch: [microbatches, replicas, rows, ...]
            weights, averages = state
            gradient = jax.vmap(jax.value_and_grad(loss))
            operation = (jaxpp.Concat(), jaxpp.Add)  # the loss is one of each replica
            losses, gradients = jaxpp.treduce(partial(gradient, weights), batch, schedule="1f1b", operation=operation)
            weights = jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)
            return averaging(weights, averages), losses.mean()

    Let S be the elements of this step. After the update their mean over all replicas is sent. It replaces them `delay`
    steps later, plus their drift, the distance that they usually move in that time:

        drift[S] = momentum * drift[S] + (1 - momentum) * (w(t)[S] - w(t - delay)[S])
        w(t)[S] = mean(w(t - delay)[S]) + drift[S]

    A round has `parts` steps, and takes each element once, at random. The first drift of an element is its first
    difference. An all-reduce moves one `parts`-th of the bytes of an all-reduce of all gradients.

    Stacked layers have the layers as their first dimension and the replicas as their second one. Each mesh stores the
    rows of its own stages, and the averages of these rows. `axes` and the `in_axes` of `jax.vmap` name the dimension:

        averaging = jaxpp.SparseAveraging(axes={"layers": 1, "head": 0})
        gradient = jax.vmap(jax.value_and_grad(loss), in_axes=(averaging.axes, 0), out_axes=(0, averaging.axes))

    Attributes:
        parts: the number of steps until each element was averaged once; 20 are the paper's 5 %.
        delay: the number of steps that an average is under way, at least 0; 0 is sparse averaging without a drift.
        momentum: the weight of the old drift in the new one, from 0 to less than 1.
        seed: the seed of the random choice.
        axes: the dimension of the replicas in the weights, 0 or 1: a number, or a tree of numbers that is a prefix of
            the weights.

    Raises:
        ScheduleError: `parts`, `delay` or `seed` is no whole number, or too small.
        ValueError: `momentum` is not in its range, or an axis is neither 0 nor 1.

    Raises (when called):
        ValueError: leaves differ in their number of replicas, `axes` is no prefix of the weights, or the state was made
            for other weights or another delay.
        TypeError: a leaf is no array of real numbers with a dimension of replicas, or the state is no `Averaging`.
    """

    parts: int = 20
    delay: int = 0
    momentum: float = 0.9
    seed: int = 0
    axes: Any = field(default=0, hash=False)

    def __post_init__(self) -> None:
        whole_number(self.parts, "parts", least=1)
        whole_number(self.delay, "delay", least=0)
        whole_number(self.seed, "seed", least=0)
        if not isinstance(self.momentum, Real) or not 0 <= self.momentum < 1:
            raise ValueError(f"SparseAveraging: momentum must be from 0 to less than 1, found {self.momentum!r}")
        for axis in jax.tree.leaves(self.axes):
            if type(axis) is not int or axis not in (0, 1):
                raise ValueError(
                    "SparseAveraging: axes are 0, where the replicas are the first dimension, or 1, behind that of "
                    f"stacked layers; found {axis!r}"
                )

    def start(self, weights: Any) -> Averaging:
        """Returns the state before the first step; the weights may be `jax.ShapeDtypeStruct`s."""
        leaves, axes = _leaves(weights, self.axes)
        leaves = list(map(jax.typeof, leaves))
        sent = tuple(
            (jnp.zeros((*layers, rows), leaf.dtype), jnp.zeros((*layers, leaf.shape[axis], rows), leaf.dtype))
            for leaf, axis in zip(leaves, axes, strict=True)
            for layers, rows in [(leaf.shape[:axis], self._shape(leaf, axis)[0])]
        )
        drift = tuple(jnp.zeros(leaf.shape, leaf.dtype) for leaf in leaves)
        return Averaging(jnp.int32(0), tuple(jax.tree.map(jnp.copy, sent) for _ in range(self.delay)), drift)

    def __call__(self, weights: Any, state: Averaging) -> tuple[Any, Averaging]:
        """Averages the weights after a step's own update; returns the new weights and the state for the next step."""
        (leaves, axes), tree = _leaves(weights, self.axes), jax.tree.structure(weights)
        if not isinstance(state, Averaging):  # pyright: ignore[reportUnnecessaryIsInstance]  # users have no checker
            raise TypeError(f"SparseAveraging: expected averaging.start(weights), found {type(state).__name__}")
        types = (map(jax.typeof, each) for each in (state.drift, leaves))
        expected, found = ([f"{each.dtype}{[*each.shape]}" for each in of_one] for of_one in types)
        if expected != found or len(state.flying) != self.delay:
            was, now = (f"[{', '.join(each)[:200]}]" for each in (expected, found))
            raise ValueError(
                f"SparseAveraging: the state is of {len(state.flying)} steps and weights {was}; "
                f"expected {self.delay} and {now}: make it by averaging.start(weights)"
            )
        flying = [[each[number] for each in state.flying] for number in range(len(leaves))]
        made = [
            self._averaged(number, leaf, axis, state.drift[number], flying[number], state.steps)
            for number, (leaf, axis) in enumerate(zip(leaves, axes, strict=True))
        ]
        under_way = tuple(zip(*(each[2] for each in made), strict=True))
        after = Averaging(state.steps + 1, under_way, tuple(each[1] for each in made))
        return jax.tree.unflatten(tree, [each[0] for each in made]), after

    def _averaged(
        self, number: int, weight: jax.Array, axis: int, drift: jax.Array, flying: list[Any], count: jax.Array
    ) -> tuple[jax.Array, jax.Array, list[Any]]:
        """Returns a leaf and its drift after this step, and the averages of the leaf that are under way then."""
        columns = self._shape(weight, axis)[1]
        rows, drifts = _in_rows(weight, axis, columns), _in_rows(drift, axis, columns)
        own = _taken(rows, self._is_chosen(number, weight, axis, count))
        (average, before), *under_way = [*flying, (own.mean(axis), own)]
        sent = count - self.delay
        is_chosen = self._is_chosen(number, weight, axis, sent)
        moved = _taken(rows, is_chosen) - before
        slow = self.momentum * _taken(drifts, is_chosen) + (1 - self.momentum) * moved
        drifted = jnp.where(sent < columns, moved, slow).astype(weight.dtype)
        arrives = is_chosen & (sent >= 0)
        after, drift = (
            _in_shape(jnp.where(arrives, new[..., None], old), weight.shape, axis)
            for new, old in ((jnp.expand_dims(average, axis) + drifted, rows), (drifted, drifts))
        )
        return after, drift, under_way

    def _shape(self, weight: Any, axis: int) -> tuple[int, int]:
        """Returns how the elements of one replica form rows and columns; a step averages one element of each row."""
        size = math.prod(weight.shape[axis + 1 :])
        columns = max(1, min(self.parts, size))
        return -(-size // columns), columns

    def _is_chosen(self, number: int, weight: jax.Array, axis: int, step: jax.Array) -> jax.Array:
        """Returns a mask [..., 1, rows, columns]: the element of each row that has its turn at `step`.

        In a round each row takes its columns in order. The first column is drawn at random for each row and round.
        """
        rows, columns = self._shape(weight, axis)
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(self.seed), number), step // columns)
        chosen = (jax.random.randint(key, (*weight.shape[:axis], rows), 0, columns) + step) % columns
        return jnp.expand_dims(chosen[..., None] == jnp.arange(columns), axis)


# These functions use no gathers and slices, which would need all layers of a stack at once (`split-stacks`).


def _in_rows(leaf: jax.Array, axis: int, columns: int) -> jax.Array:
    """Returns the elements of each replica as [..., replicas, rows, columns], padded with zeros at the end."""
    flat = leaf.reshape(*leaf.shape[: axis + 1], -1)
    return _resized(flat, -flat.shape[-1] % columns).reshape(*flat.shape[:-1], -1, columns)


def _in_shape(rows: jax.Array, shape: tuple[int, ...], axis: int) -> jax.Array:
    """Undoes `_in_rows` for a leaf of this shape."""
    flat = rows.reshape(*shape[: axis + 1], -1)
    return _resized(flat, math.prod(shape[axis + 1 :]) - flat.shape[-1]).reshape(shape)


def _resized(flat: jax.Array, more: int) -> jax.Array:
    """Appends `more` zeros along the last dimension, or removes elements at its end if `more` is negative."""
    return jax.lax.pad(flat, jnp.zeros((), flat.dtype), [(0, 0, 0)] * (flat.ndim - 1) + [(0, more, 0)])


def _taken(rows: jax.Array, is_chosen: jax.Array) -> jax.Array:
    """Returns the chosen element of each row, [..., replicas, rows]."""
    return jnp.where(is_chosen, rows, 0).sum(-1, dtype=rows.dtype)


def _leaves(weights: Any, axes: Any) -> tuple[list[Any], list[int]]:
    """Returns the leaves of the weights, and the dimension of the replicas in each leaf.

    Raises:
        ValueError: `axes` is no prefix of the weights, or the leaves differ in their number of replicas.
        TypeError: a leaf is no array of real numbers with a dimension of replicas.
    """
    leaves = jax.tree.leaves(weights)
    try:
        along = entries_per_leaf(axes, weights, lambda entry: isinstance(entry, int))
    except ValueError as error:
        raise ValueError(f"SparseAveraging: axes={axes} are no prefix of the weights: {error}") from None
    for name, leaf, axis in zip(leaf_names("weights", weights), leaves, along, strict=True):
        shape = jax.typeof(leaf).shape if is_array(leaf) else ()
        if not math.prod(shape) or len(shape) <= axis:
            found = f"of shape {shape}" if is_array(leaf) else type(leaf).__name__
            expected = "[layers, replicas, ...]" if axis else "[replicas, ...]"
            raise TypeError(f"SparseAveraging: {name} is {found}, expected an array {expected}")
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise TypeError(f"SparseAveraging: {name} is of type {leaf.dtype}, which has no mean")
        if leaf.shape[axis] != leaves[0].shape[along[0]]:
            raise ValueError(
                f"SparseAveraging: {name} has {leaf.shape[axis]} replicas along its {'second' if axis else 'first'} "
                f"dimension, the leaf before it {leaves[0].shape[along[0]]}"
            )
    return leaves, along
