"""`SparseAveraging`: replicas that train apart, and average some of their weights at each step, some steps later."""

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxpp.lowering.arguments import leaf_names
from jaxpp.lowering.marks import is_array
from jaxpp.schedules.errors import whole_number


class Averaging(NamedTuple):
    """What `SparseAveraging` keeps from step to step.

    Attributes:
        steps: how many there were, int32[].
        flying: for each average that has not arrived, the oldest first, and for each leaf: the average, and what each
            replica had when it was taken, [elements] and [replicas, elements].
        drift: for each leaf the moving average of how far its elements move while an average is under way.
    """

    steps: jax.Array
    flying: tuple[tuple[tuple[jax.Array, jax.Array], ...], ...]
    drift: tuple[jax.Array, ...]


@dataclass(frozen=True)
class SparseAveraging:
    """Asynchronous averaging of a part of the weights at each step (AsyncMesh, arXiv 2601.22442).

    Each replica takes its own gradients, of its own examples, and makes its own update; no gradient is summed over
    them. The replicas are the first dimension of each leaf of the weights, sharded over the axis of the batch. A step
    is written for one of them and mapped over that dimension, in which stage marks may stand:

        averaging = jaxpp.SparseAveraging(parts=20, delay=10)

        def step(state, batch):  # batch: [microbatches, replicas, rows, ...]
            weights, averages = state
            gradient = jax.vmap(jax.value_and_grad(loss))
            losses, gradients = jaxpp.treduce(partial(gradient, weights), batch, schedule="1f1b")
            weights = jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)
            return averaging(weights, averages), losses.mean()

    Of S, the elements of this step, the mean over all replicas sets out when they are updated, and takes their place
    `delay` steps later, moved as far as such elements mostly move meanwhile:

        drift[S] = momentum * drift[S] + (1 - momentum) * (w(t)[S] - w(t - delay)[S])
        w(t)[S] = mean(w(t - delay)[S]) + drift[S]

    The elements are taken in rounds of `parts` steps, each once in a round and at random; the first drift of an
    element is its first difference. An all-reduce moves a `parts`-th of what one of all gradients would.

    Attributes:
        parts: how many steps it takes until each element was averaged once; 20 are the paper's 5 %.
        delay: how many steps an average is under way, at least 0; 0 is sparse averaging without a drift.
        momentum: how slowly the drift changes, from 0 to less than 1.
        seed: of the random choice.

    Raises:
        ScheduleError: `parts`, `delay` or `seed` is no whole number, or too small.
        ValueError: `momentum` is not in its range; when called: leaves differ in their number of replicas, or the
            weights are not those that the state was made for.
        TypeError: when called: a leaf is no array of real numbers with a dimension of replicas, or the state is none.
    """

    parts: int = 20
    delay: int = 0
    momentum: float = 0.9
    seed: int = 0

    def __post_init__(self) -> None:
        whole_number(self.parts, "parts", least=1)
        whole_number(self.delay, "delay", least=0)
        whole_number(self.seed, "seed", least=0)
        if not isinstance(self.momentum, Real) or not 0 <= self.momentum < 1:
            raise ValueError(f"SparseAveraging: momentum must be from 0 to less than 1, found {self.momentum!r}")

    def start(self, weights: Any) -> Averaging:
        """The state before the first step; of `jax.ShapeDtypeStruct`s too."""
        leaves = list(map(jax.typeof, _leaves(weights)))
        sent = tuple(
            (jnp.zeros(rows, leaf.dtype), jnp.zeros((leaf.shape[0], rows), leaf.dtype))
            for leaf in leaves
            for rows in [self._shape(leaf)[0]]
        )
        drift = tuple(jnp.zeros(leaf.shape, leaf.dtype) for leaf in leaves)
        return Averaging(jnp.int32(0), tuple(jax.tree.map(jnp.copy, sent) for _ in range(self.delay)), drift)

    def __call__(self, weights: Any, state: Averaging) -> tuple[Any, Averaging]:
        """The weights after a step's own update, and its state, to those of the next step."""
        leaves, tree = _leaves(weights), jax.tree.structure(weights)
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
            self._averaged(number, leaf, state.drift[number], flying[number], state.steps)
            for number, leaf in enumerate(leaves)
        ]
        under_way = tuple(zip(*(each[2] for each in made), strict=True))
        after = Averaging(state.steps + 1, under_way, tuple(each[1] for each in made))
        return jax.tree.unflatten(tree, [each[0] for each in made]), after

    def _averaged(
        self, number: int, weight: jax.Array, drift: jax.Array, flying: list[Any], count: jax.Array
    ) -> tuple[jax.Array, jax.Array, list[Any]]:
        """A leaf and its drift after this step, and the averages of it that are under way then."""
        columns = weight.shape, self._shape(weight)[1]
        rows, drifts = _in_rows(weight, columns[1]), _in_rows(drift, columns[1])
        own = _taken(rows, self._chosen(number, weight, count))
        (average, before), *under_way = [*flying, (own.mean(0), own)]
        sent = count - self.delay
        chosen = self._chosen(number, weight, sent)
        moved = _taken(rows, chosen) - before
        slow = self.momentum * _taken(drifts, chosen) + (1 - self.momentum) * moved
        drifted = jnp.where(sent < columns[1], moved, slow).astype(weight.dtype)
        arrives = (jnp.arange(columns[1]) == chosen[:, None]) & (sent >= 0)
        made = (
            jnp.where(arrives, new[..., None], old).reshape(weight.shape[0], -1)
            for new, old in ((average + drifted, rows), (drifted, drifts))
        )
        size = weight.size // weight.shape[0]
        after, drift = (each[:, :size].reshape(weight.shape) for each in made)
        return after, drift, under_way

    def _shape(self, weight: Any) -> tuple[int, int]:
        """Rows and columns of the elements of one replica; at each step an element of each row is averaged."""
        size = weight.size // weight.shape[0]
        columns = max(1, min(self.parts, size))
        return -(-size // columns), columns

    def _chosen(self, number: int, weight: jax.Array, step: jax.Array) -> jax.Array:
        """The column of each row whose turn it is: in a round each has all, from one on that is drawn anew."""
        rows, columns = self._shape(weight)
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(self.seed), number), step // columns)
        return (jax.random.randint(key, (rows,), 0, columns) + step) % columns


def _in_rows(leaf: jax.Array, columns: int) -> jax.Array:
    """The elements of each replica, [replicas, rows, columns], with zeros behind the last one."""
    flat = leaf.reshape(leaf.shape[0], -1)
    return jnp.pad(flat, ((0, 0), (0, -flat.shape[1] % columns))).reshape(leaf.shape[0], -1, columns)


def _taken(rows: jax.Array, chosen: jax.Array) -> jax.Array:
    """An element of each row, [replicas, rows]."""
    return jnp.take_along_axis(rows, chosen[None, :, None], axis=2)[..., 0]


def _leaves(weights: Any) -> list[Any]:
    """The leaves, all with the same number of replicas."""
    leaves = jax.tree.leaves(weights)
    for name, leaf in zip(leaf_names("weights", weights), leaves, strict=True):
        shape = jax.typeof(leaf).shape if is_array(leaf) else ()
        if not math.prod(shape) or not shape:
            found = f"of shape {shape}" if is_array(leaf) else type(leaf).__name__
            raise TypeError(f"SparseAveraging: {name} is {found}, expected an array [replicas, ...]")
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise TypeError(f"SparseAveraging: {name} is of type {leaf.dtype}, which has no mean")
        if leaf.shape[0] != leaves[0].shape[0]:
            raise ValueError(
                f"SparseAveraging: {name} has {leaf.shape[0]} replicas along its first dimension, "
                f"the leaf before it {leaves[0].shape[0]}"
            )
    return leaves
