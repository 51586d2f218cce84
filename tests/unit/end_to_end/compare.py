"""A small marked model, and the comparison of a pipelined step with plain `jax.jit` of the same function."""

# pyright: reportUnknownLambdaType=false

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cache, lru_cache, partial
from types import FunctionType
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.sharding import AxisType, Mesh

import jaxpp.api as jaxpp
from jaxpp._compat import trace_context
from jaxpp.lowering.train_loop import TrainLoop, lower_step
from jaxpp.schedules.search import Partition

WIDTH = 8
ROWS = 4
TOLERANCE = 1e-5


def make_mesh(
    stages: int,
    *,
    data: int = 1,
    model: int = 1,
    order: Sequence[str] = ("mpmd", "data", "model"),
    explicit: bool = False,
) -> jaxpp.MpmdMesh:
    """`stages` meshes of `data` x `model` devices, with the axes in this order.

    Where there are not that many devices, as on one GPU, all stages have the first; a test of larger meshes is skipped.
    """
    sizes = {"mpmd": stages, "data": data, "model": model}
    shape = [sizes[name] for name in order]
    types = (AxisType.Explicit if explicit else AxisType.Auto,) * len(order)
    if len(jax.devices()) < stages * data * model:
        if data * model > 1:
            pytest.skip(f"it needs {stages * data * model} devices, and there are {len(jax.devices())}")
        one = Mesh(np.array(jax.devices()[:1]).reshape(1, 1, 1), tuple(order), axis_types=types)
        return jaxpp.MpmdMesh.of([one] * stages, "mpmd")
    devices = np.array(jax.devices()[: stages * data * model]).reshape(shape)
    return jaxpp.MpmdMesh(Mesh(devices, tuple(order), axis_types=types), "mpmd")


def weights(stages: int, width: int = WIDTH) -> list[jax.Array]:
    """One square matrix per stage, near the identity in scale."""
    return [jnp.array(_weight(k, width)) for k in range(stages)]


@cache
def _weight(seed: int, width: int) -> np.ndarray:
    with jax.ensure_compile_time_eval():  # the first to ask may be a shape alone
        return np.asarray(jax.random.normal(jax.random.key(seed), (width, width)) / width**0.5)


def batch(microbatches: int, rows: int = ROWS, width: int = WIDTH) -> dict[str, np.ndarray]:
    """Inputs and targets, (microbatches, rows, width) each."""
    random = np.random.default_rng(0)
    return {name: random.normal(size=(microbatches, rows, width)).astype(np.float32) for name in "xy"}


def layers(params: Sequence[jax.Array], x: jax.Array, marks: int | None = None) -> jax.Array:
    """A tanh layer per stage, each followed by a mark (of the first `marks` only)."""
    for stage, w in enumerate(params):
        x = jnp.tanh(x @ w)
        if marks is None or stage < marks:
            x = jaxpp.mark_stage_end(x)
    return x


def loss(params: Sequence[jax.Array], microbatch: dict[str, jax.Array], marks: int | None = None) -> jax.Array:
    """Mean squared error of `layers`."""
    return jnp.mean((layers(params, microbatch["x"], marks) - microbatch["y"]) ** 2)


def loss_with_callback(
    look_up: Callable[..., np.ndarray], params: Sequence[jax.Array], microbatch: dict[str, jax.Array]
) -> jax.Array:
    """Mean squared error of a tanh layer per stage, times the sine of what `look_up` returns for the layer's input."""
    x = microbatch["x"]
    for w in params:
        looked = io_callback(look_up, jax.ShapeDtypeStruct(x.shape, x.dtype), jax.lax.stop_gradient(x))
        x = jaxpp.mark_stage_end(jnp.tanh(x @ w) * jnp.sin(looked))
    return jnp.mean((x - microbatch["y"]) ** 2)


def sgd_step(
    params: Any, batch: Any, *, schedule: Any = None, marks: int | None = None, loss: Callable[..., Any] = loss
) -> Any:
    """(new parameters, losses of the microbatches)."""
    of_one = partial(loss, marks=marks) if marks is not None else loss
    losses, grads = jaxpp.treduce(
        partial(jax.value_and_grad(of_one), params),
        batch,
        schedule=schedule,
        operation=(jaxpp.Concat(), jaxpp.Add),
    )
    return jax.tree.map(lambda w, g: w - 0.1 * g, params, grads), losses


def assert_same(found: Any, expected: Any, *, exact: bool = False, tolerance: float = TOLERANCE) -> None:
    """Equal trees of equal types; values within `tolerance` of the largest of each array, or bit for bit."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(expected)]
    for path, one, other in zip(paths, jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert isinstance(one, jax.Array), path
        # With explicit axes the type of a stack, of which each mesh has a block, says so.
        assert jax.typeof(one).str_short().replace("@mpmd", "") == jax.typeof(other).str_short(), path
        assert jax.typeof(one).weak_type == jax.typeof(other).weak_type, path
        if jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
            one, other = map(jax.random.key_data, (one, other))
        one, other = np.asarray(one), np.asarray(other)
        if exact or one.dtype.kind in "biu":
            np.testing.assert_array_equal(one, other, err_msg=path)
        else:
            wide = np.complex128 if one.dtype.kind == "c" else np.float64
            one, other = one.astype(wide), other.astype(wide)
            assert np.isfinite(other).all(), path
            scale = np.abs(other).max(initial=0.0)
            worst = np.abs(one - other).max(initial=0.0)
            assert worst <= tolerance * max(scale, 1e-30), f"{path}: {worst:.2e} of {scale:.2e}"


def check(
    function: Callable[..., Any],
    args: Sequence[Any],
    mesh: jaxpp.MpmdMesh,
    *,
    exact: bool = False,
    steps: int = 1,
    feed: Callable[[Any, Sequence[Any]], Sequence[Any]] | None = None,
    kwargs: dict[str, Any] | None = None,
    reference: Callable[..., Any] | None = None,
    tolerance: float = TOLERANCE,
    **options: Any,
) -> Any:
    """Run `function` pipelined and under plain `jax.jit` (or as `reference`), compare, and return the pipelined result.

    `feed(result, arguments)` makes the arguments of the next of `steps`.
    """
    pipelined = _pipelined(function, mesh, args, kwargs or {}, options)
    static = {name: options[name] for name in ("static_argnums", "static_argnames") if name in options}
    plain = reference or plain_of(function, **static)
    return check_compiled(
        pipelined, plain, args, exact=exact, steps=steps, feed=feed, kwargs=kwargs, tolerance=tolerance
    )


def check_compiled(
    pipelined: Callable[..., Any],
    plain: Callable[..., Any],
    args: Sequence[Any],
    *,
    exact: bool = False,
    steps: int = 1,
    feed: Callable[[Any, Sequence[Any]], Sequence[Any]] | None = None,
    kwargs: dict[str, Any] | None = None,
    tolerance: float = TOLERANCE,
) -> Any:
    """As `check`, of functions that are compiled already, or will be."""
    ours, theirs = list(args), list(args)
    for _ in range(steps):
        expected = plain(*theirs, **(kwargs or {}))
        found = pipelined(*ours, **(kwargs or {}))
        assert_same(found, expected, exact=exact, tolerance=tolerance)
        if feed is not None:
            ours, theirs = list(feed(found, ours)), list(feed(expected, theirs))
    return found  # pyright: ignore[reportPossiblyUnboundVariable]


def _pipelined(
    function: Callable[..., Any], mesh: jaxpp.MpmdMesh, args: Any, kwargs: Any, options: Mapping[str, Any]
) -> Callable[..., Any]:
    """The function on these meshes."""
    if kwargs or not options.keys().isdisjoint(_CALLED) or isinstance(options.get("cuts"), Partition):
        return jaxpp.mpmd_jit_with_loop(function, mpmd_mesh=mesh, **step_keywords(options))
    return lowered(function, args, mesh, **options).compile()


_CALLED = "static_argnums", "static_argnames", "schedule"
"""With these options, and with cuts that have a schedule, `check` compiles a step as its users do, by calling it."""


def step_keywords(options: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of `mpmd_jit_with_loop`, with the fields of `StepOptions` in one."""
    rare = {field.name for field in fields(jaxpp.StepOptions)} & options.keys()
    others = {name: value for name, value in options.items() if name not in rare}
    return {**others, "options": jaxpp.StepOptions(**{name: options[name] for name in rare})} if rare else others


def lowered(function: Callable[..., Any], args: Any, mesh: jaxpp.MpmdMesh, **options: Any) -> Any:
    """The step `function`. What runs under several schedules, or is kept in several ways, is traced once."""
    same = _without_schedule(function)
    types = [(jax.typeof(leaf), getattr(leaf, "sharding", None)) for leaf in jax.tree.leaves(args)]
    kind = _meaning(same), mesh, jax.tree.structure(args), tuple(types), trace_context()
    traced = {name: value for name, value in options.items() if name not in _OF_PASSES}

    def trace(*args: Any, **kwargs: Any) -> Any:
        return _made_once((kind, _leaves(traced)), partial(lower_step, *args, **kwargs))

    def lower() -> Any:
        with mock.patch("jaxpp.jit.lower_step", trace):
            step = jaxpp.mpmd_jit_with_loop(same, mpmd_mesh=mesh, **step_keywords(options)).lower(*args)
        return step if same is function else step.with_schedule(schedule)

    schedule: Any = _schedule_of(function) if same is not function else None
    if "memory_limit" in options:  # such a step compiles another program than it had before
        return lower()
    return _made_once((kind, _leaves(options), schedule), lower)


_OF_PASSES = (
    *("cuts", "recompute", "memory_limit", "host_memory_limit", "costs"),
    *("gather_weights", "scatter_gradients", "share_tasks", "passes"),
)
"""Options that say nothing about the module as it is lowered."""


def _leaves(tree: Any) -> Any:
    leaves, structure = jax.tree.flatten(tree)
    return *leaves, structure


def _without_schedule(function: Callable[..., Any]) -> Callable[..., Any]:
    """The reference is one program for all schedules: what a schedule says stands in the module, and XLA ignores it."""
    if _schedule_of(function) is None:
        return function
    if isinstance(function, TrainLoop):
        return replace(function, step=partial(function.step, schedule=None))
    return partial(function, schedule=None)


def _schedule_of(function: Callable[..., Any]) -> Any:
    """What a step, or the step of a loop, is given as `schedule`."""
    step = function.step if isinstance(function, TrainLoop) else function
    return step.keywords.get("schedule") if isinstance(step, partial) else None


def plain_of(function: Callable[..., Any], **static: Any) -> Callable[..., Any]:
    """`jax.jit` of it, or of one that does the same: what many schedules are compared with is traced once."""
    same = _without_schedule(function)
    return _made_once((_meaning(same), tuple(static.items())), partial(jax.jit, same, **static))


def _made_once(meaning: Any, make: Callable[[], Any]) -> Any:
    """What `make` makes; of those with equal meanings the first one is made."""
    what = _What(meaning, make)
    try:
        hash(what)
    except TypeError:  # a function captured what can't be compared
        return make()
    return _make(what)


@dataclass(frozen=True)
class _What:
    meaning: Any
    make: Callable[[], Any] = field(compare=False)


@lru_cache(maxsize=64)
def _make(what: _What) -> Any:
    return what.make()


def _meaning(value: Any) -> Any:
    """Equal for functions that one `def` made, where what they captured and their defaults are equal too."""
    if isinstance(value, partial):
        return partial, _meaning(value.func), *map(_meaning, value.args), *map(_meaning, sorted(value.keywords.items()))
    if isinstance(value, FunctionType):
        captured = [cell.cell_contents for cell in value.__closure__ or ()]
        defaults = (*(value.__defaults__ or ()), *sorted((value.__kwdefaults__ or {}).items()))
        return value.__code__, id(value.__globals__), *map(_meaning, captured), *map(_meaning, defaults)
    if isinstance(value, TrainLoop):
        return TrainLoop, _meaning(value.step), value.steps, value.delay
    if isinstance(value, tuple):
        return tuple, *map(_meaning, value)
    if isinstance(value, np.ndarray):
        return np.ndarray, value.dtype, value.shape, value.tobytes()
    return type(value), value


def feed_state(result: Any, args: Sequence[Any]) -> tuple[Any, ...]:
    """The next step's arguments: the first result takes the place of the first argument."""
    return (result[0], *args[1:])


class Compiles:
    """How often XLA compiled, in a `with counted_compiles() as compiles` block."""

    count = 0


@contextmanager
def counted_compiles() -> Generator[Compiles]:
    """Counts XLA's compiles, by `jax.monitoring`."""
    compiles = Compiles()

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        compiles.count += event == "/jax/core/compile/backend_compile_duration"

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield compiles
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def pointers(tree: Any) -> list[int]:
    """The addresses of all shards of all arrays."""
    return [shard.data.unsafe_buffer_pointer() for array in jax.tree.leaves(tree) for shard in array.addressable_shards]
