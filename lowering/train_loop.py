"""`train_loop`: a loop over optimizer steps, lowered to a module of one step."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxpp.ir.train_loop import TrainLoopAttr
from jaxpp.lowering.arguments import is_sharding, per_leaf
from jaxpp.lowering.expectation import assumptions
from jaxpp.lowering.locations import here, name_of_function
from jaxpp.lowering.lower import Lowered, lower
from jaxpp.lowering.mesh import MpmdSharding
from jaxpp.lowering.structures import check_leaves, leaf_names
from jaxpp.schedules.errors import whole_number

_CLOSE_OVER = "; close over Python values"
_ARRAYS = "; return arrays alone"
_OR_WAIT = "call jaxpp.expect in it, or use mpmd_jit_with_loop, which waits"
_WITHOUT = ("static_argnums", "static_argnames")


def train_loop(step: Callable[..., Any], steps: int, delay: int = 0) -> "TrainLoop":
    """Returns a function that runs a training step several times: `state, metrics = loop(state, batches)`.

    It computes the same as `jax.lax.scan(step, state, batches)`:

        for batch in batches:
            state, metrics = step(state, batch)

    Under `jax.jit` that scan runs. `mpmd_jit_with_loop(train_loop(step, 4), mesh)` makes one program of all steps,
    without a barrier between them. A mesh begins the next step as soon as it has the state that the step reads.

    With a `delay` of 1 or more the gradients are taken at older weights. The next step can then begin while this one
    still runs backward: w(t + 1) = w(t) - lr * grad(w(t - delay)) (PipeDream-2BW, arXiv 2006.09503). The state is then
    a tuple whose first item is the weights. `step(state, batch, weights)` gets the weights of `delay` steps before,
    takes gradients at these, and updates `state`. The loop takes and returns `(state, older)`, where `older` are the
    older weights, the latest first. `loop.start(state)` makes this pair from a state. With a schedule of several steps,
    such as "pipedream-2bw", no mesh waits between two steps.

    Args:
        step: `(state, batch) -> (state, metrics)`, pytrees of arrays, with one `treduce`; the state that it returns has
            the structure and types of the one that it takes.
        steps: the number of steps of a call, at least 1: the size of the first dimension of all leaves of `batches` and
            of `metrics`.
        delay: the number of updates that are missing in the weights at which gradients are taken; less than `steps`.

    Raises:
        ScheduleError: `steps` or `delay` is no whole number, or too small.
        ValueError: `delay` is not less than `steps`; when called: batches of another number of steps, a state that
            changes its structure, or the wrong structure for a delay.
        TypeError: `step` is no function; when called: the state changes its types, a leaf is no array.
    """
    steps = whole_number(steps, f"{here()}train_loop: steps", least=1)
    delay = whole_number(delay, f"{here()}train_loop: delay", least=0)
    if not callable(step):
        expected = "a function (state, batch) -> (state, metrics)"
        raise TypeError(f"{here()}train_loop: step is {step!r}, expected {expected}")
    if delay >= steps:
        raise ValueError(f"{here()}train_loop: delay={delay} is not less than steps={steps}: no step sees an update")
    return TrainLoop(step, steps, delay)


@dataclass(frozen=True)
class TrainLoop:
    """The result of `train_loop`; it is called like the loop.

    Attributes:
        step: the user's function.
        steps: the number of steps of a call.
        delay: the number of updates that are missing in the weights at which it takes gradients.
    """

    step: Callable[..., Any]
    steps: int
    delay: int = 0

    def __repr__(self) -> str:
        return f"train_loop({self.__name__}, steps={self.steps}, delay={self.delay})"

    @property
    def __name__(self) -> str:
        return name_of_function(self.step)

    def start(self, state: Any) -> Any:
        """Returns the argument of the first call: `state`, or with a delay `(state, older)`, all weights equal.

        The older weights are copies, so that the call may get all of it donated (`donate_argnums=0`).
        """
        if not self.delay:
            return state
        weights = _weights(state)
        return state, tuple(jax.tree.map(_copy, weights) for _ in range(self.delay))

    def __call__(self, state: Any, batches: Any) -> tuple[Any, Any]:
        """Runs all steps, as ordinary JAX."""
        self.check(state, batches)
        return jax.lax.scan(self.one, state, batches, self.steps)

    def one(self, state: Any, batches: Any) -> tuple[Any, Any]:
        """Runs one step; with a delay it also hands on the weights. (Its parameters have the names of the loop's.)"""
        if not self.delay:
            after, metrics = _pair(self.step(state, batches))
        else:
            now, older = state
            made, metrics = _pair(self.step(now, batches, older[-1]))
            after = made, (_weights(now), *older[:-1])
        check_leaves("train_loop", "the new state", after, _ARRAYS)
        _check_same(state, after)
        check_leaves("train_loop", "metrics", metrics, _ARRAYS)
        return after, metrics

    def check(self, state: Any, batches: Any) -> None:
        """Refuses a state without older weights, and batches of another number of steps or with sharded steps."""
        if self.delay and not (isinstance(state, tuple) and len(state) == 2 and _is_older(state[1], self.delay)):
            raise ValueError(
                f"{here()}train_loop: with delay={self.delay} the state is (state, {self.delay} older weights); "
                "loop.start(state) makes it"
            )
        check_leaves("train_loop", "state", state, _CLOSE_OVER)
        check_leaves("train_loop", "batches", batches, _CLOSE_OVER)
        for name, leaf in zip(leaf_names("batches", batches), jax.tree.leaves(batches), strict=True):
            if jax.typeof(leaf).shape[:1] != (self.steps,):
                found = jax.typeof(leaf).shape
                raise ValueError(f"{here()}train_loop: {name} has shape {found}; expected {self.steps} steps in front")
            _of_step(f"{here()}train_loop: {name}", jax.typeof(leaf).sharding.spec)


def assuming(loop: TrainLoop) -> TrainLoop:
    """Returns the loop whose steps assume their conditions (`expect`).

    Its metrics are (the user's metrics, whether all conditions held).
    """

    def step(*arguments: Any) -> Any:
        with assumptions() as conditions:
            after, metrics = _pair(loop.step(*arguments))
        if not conditions:
            raise ValueError(f"{here()}optimistic: {loop.__name__} expects nothing: {_OR_WAIT}")
        return after, (metrics, jnp.all(jnp.stack(conditions)))

    step.__name__ = loop.__name__
    return replace(loop, step=step)


@dataclass(frozen=True)
class OneStep:
    """A single step of a loop: `(state, batches, metrics, number) -> (state, batches, metrics)`.

    It takes the batches of all steps and returns them unchanged, so that the next step finds them on the meshes that
    read them. Of the metrics of all steps it writes its own.
    """

    loop: TrainLoop

    def __call__(self, state: Any, batches: Any, metrics: Any, number: Any) -> Any:
        """Runs step `number`, as ordinary JAX."""
        self.loop.check(state, batches)
        take = functools.partial(jax.lax.dynamic_index_in_dim, index=number, keepdims=False)
        batch = jax.tree.map(take, batches)
        after, made = self.loop.one(state, batch)
        return after, batches, jax.tree.map(functools.partial(_put, number=number), metrics, made)

    @property
    def __name__(self) -> str:
        return self.loop.__name__


def _put(metrics: Any, made: Any, number: Any) -> Any:
    """Writes the metrics of step `number` into those of all steps, which JAX wants with the same Explicit axes."""
    mesh = jax.sharding.get_abstract_mesh()
    if AxisType.Explicit in mesh.axis_types:
        metrics = jax.sharding.reshard(metrics, PartitionSpec(None, *jax.typeof(made).sharding.spec))
    return jax.lax.dynamic_update_index_in_dim(metrics, made, number, 0)


def no_metrics(loop: TrainLoop, state: Any, batches: Any) -> Any:
    """Returns zeros of the shapes and types of the metrics of all steps."""
    loop.check(state, batches)
    types = jax.eval_shape(loop.one, state, jax.tree.map(_entry, batches))[1]
    return jax.tree.map(lambda one: jnp.zeros((loop.steps, *one.shape), one.dtype), types)  # pyright: ignore[reportUnknownLambdaType]


def _weights(state: Any) -> Any:
    if not isinstance(state, tuple) or not state:
        found = type(state).__name__
        raise ValueError(f"{here()}train_loop: with a delay the state is a tuple, the weights first; found {found}")
    return state[0]


def _is_older(older: Any, delay: int) -> bool:
    return isinstance(older, tuple) and len(older) == delay


def _pair(returned: Any) -> tuple[Any, Any]:
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise TypeError(f"{here()}train_loop: the step returns a {type(returned).__name__}; expected (state, metrics)")
    return returned


def _copy(leaf: Any) -> Any:
    return leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jnp.copy(leaf)


def _check_same(state: Any, after: Any) -> None:
    """Refuses a step that changes the structure or a type of its state."""
    before, made = jax.tree.structure(state), jax.tree.structure(after)
    if before != made:
        raise ValueError(f"{here()}train_loop: the step takes a state {_short(before)} and returns {_short(made)}")
    leaves = zip(leaf_names("state", state), jax.tree.leaves(state), jax.tree.leaves(after), strict=True)
    for name, old, new in leaves:
        types = [f"{jax.typeof(each).dtype}{list(jax.typeof(each).shape)}" for each in (old, new)]
        if types[0] != types[1]:
            raise TypeError(f"{here()}train_loop: {name} is {types[0]}, the step makes {types[1]} of it")


def _short(tree: Any) -> str:
    return str(tree).removeprefix("PyTreeDef")[:200]


def lower_step(fun: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], **options: Any) -> Lowered:
    """Lowers a function as `lower` does; of a `TrainLoop`, one step, with the number of steps in `jaxpp.train_loop`.

    Raises:
        TypeError, ValueError: as `lower`; the arguments or shardings don't fit the loop.
    """
    if not isinstance(fun, TrainLoop):
        return lower(fun, args, kwargs, **options)
    if kwargs or len(args) != 2:
        raise TypeError(f"{here()}train_loop: call it with (state, batches), by position")
    check_options(options)
    state, batches = args
    fun.check(state, batches)
    count, taken = len(jax.tree.leaves(state)), None
    if (shardings := options.get("in_shardings")) is not None:
        entries = per_leaf("in_shardings", shardings, args)
        names = leaf_names("in_shardings for batches", batches)
        each = [_of_step(*pair) for pair in zip(names, entries[1], strict=True)]
        taken = entries[0]
        trees = zip(map(jax.tree.structure, args), (entries[0], each), strict=True)
        options["in_shardings"] = [jax.tree.unflatten(*pair) for pair in trees]
    _check_one_sharding(fun.delay, state, taken or [None] * count, options.get("out_shardings"))
    options["out_shardings"] = _results_of_step(options.get("out_shardings"))

    def one(state: Any, batches: Any) -> tuple[Any, Any]:
        return fun.one(state, batches)

    one.__name__ = fun.__name__
    lowered = lower(one, (state, jax.tree.map(_entry, batches)), {}, state=count, **options)
    with lowered.module.context:
        TrainLoopAttr(fun.steps, count, fun.delay).write(lowered.module)

    def stacked(avals: Sequence[Any]) -> tuple[Any, ...]:
        return (*avals[:count], *(_stacked(aval, fun.steps) for aval in avals[count:]))

    return replace(lowered, in_avals=stacked(lowered.in_avals), out_avals=stacked(lowered.out_avals))


def check_options(options: Mapping[str, Any]) -> None:
    """Raises TypeError for static arguments, which a loop can't have."""
    given = next((name for name in _WITHOUT if options.get(name) is not None), None)
    if given is not None:
        raise TypeError(f"{here()}train_loop: it takes arrays alone, found {given}; close over Python values")


def _entry(leaf: Any) -> jax.ShapeDtypeStruct:
    """Returns the type of one step's batch, from a leaf that holds the batches of all steps."""
    aval = jax.typeof(leaf)
    sharding, present = getattr(leaf, "sharding", None), None
    if isinstance(sharding, NamedSharding) and sharding.spec[:1] in ((), (None,)):
        present = NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[1:]))
    return jax.ShapeDtypeStruct(aval.shape[1:], aval.dtype, sharding=present, weak_type=aval.weak_type)


def _stacked(aval: Any, steps: int) -> Any:
    return jax.typeof(jax.ShapeDtypeStruct((steps, *aval.shape), aval.dtype, weak_type=aval.weak_type))


def _of_step(what: str, sharding: Any) -> Any:
    """Returns the sharding of one step's entry, from the sharding of a value with all steps in its first dimension."""
    spec = sharding.spec if isinstance(sharding, (NamedSharding, MpmdSharding)) else sharding
    if not isinstance(spec, PartitionSpec):
        return sharding
    if spec[:1] not in ((), (None,)):
        raise ValueError(f"{what}: {spec} shards the steps of a train_loop, which run one after the other")
    rest = PartitionSpec(*spec[1:])
    if isinstance(sharding, NamedSharding):
        return NamedSharding(sharding.mesh, rest, memory_kind=sharding.memory_kind)
    return replace(sharding, spec=rest) if isinstance(sharding, MpmdSharding) else rest


def _results_of_step(prefix: Any) -> Any:
    """Returns `out_shardings` of one step, from `out_shardings` of the loop, a prefix of (state, metrics)."""
    if prefix is None:
        return None
    state, metrics = of_results(prefix)
    of_step = functools.partial(_of_step, "out_shardings for metrics")
    return state, jax.tree.map(of_step, metrics, is_leaf=is_sharding)


def of_results(prefix: Any) -> tuple[Any, Any]:
    """Returns `out_shardings` of the state and of the metrics."""
    return (prefix, prefix) if is_sharding(prefix) or len(prefix) != 2 else prefix


def _check_one_sharding(delay: int, state: Any, taken: Sequence[Any], prefix: Any) -> None:
    """Refuses `out_shardings` of the state that differ from its `in_shardings`, and versions of weights that differ."""
    returned = per_leaf("out_shardings", [of_results(prefix)[0]], [state])[0]
    names, given = leaf_names("state", state), list[Any]()
    for name, *ends in zip(names, taken, returned, strict=True):
        specs = [each if isinstance(each, PartitionSpec) else getattr(each, "spec", None) for each in ends]
        first, last = (None if spec is None else _without_end(spec) for spec in specs)
        if first is not None and last is not None and first != last:
            raise ValueError(
                f"{here()}train_loop: in_shardings have {specs[0]} of {name}, out_shardings {specs[1]}: "
                "a step takes it as the one before returns it; give one of them"
            )
        given.append(last if first is None else first)
    weights = len(jax.tree.leaves(_weights(state[0]))) if delay else 0
    for number in range(len(given) - delay * weights, len(given)):
        now = (number - len(given)) % weights
        if given[number] is not None and given[now] is not None and given[number] != given[now]:
            raise ValueError(
                f"{here()}train_loop: {names[now]} and {names[number]}, which are weights and the same a step older, "
                f"have other shardings, {PartitionSpec(*given[now])} and {PartitionSpec(*given[number])}"
            )


def _without_end(spec: PartitionSpec) -> tuple[Any, ...]:
    """Returns the entries of `spec` without its trailing unsharded dimensions."""
    entries = tuple(spec)
    while entries and entries[-1] is None:
        entries = entries[:-1]
    return entries
