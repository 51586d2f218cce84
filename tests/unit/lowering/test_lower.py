"""`lower`: what it takes as arguments, and what it says of them."""

# pyright: reportUnknownLambdaType=false

import functools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxlib.mlir import ir

from jaxpp.lowering import Add, Concat, Lowered, MpmdMesh, MpmdSharding, lower, mark_stage_end, treduce

X = np.ones((4, 4), np.float32)


def main_of(module: ir.Module) -> Any:
    return next(op.operation for op in module.body if ir.StringAttr(op.attributes["sym_name"]).value == "main")


def attributes(module: ir.Module, kind: str, name: str) -> list[str | None]:
    """The attribute `name` of each argument (`arg_attrs`) or result (`res_attrs`) of `@main`, as text."""
    main = main_of(module)
    if kind not in main.attributes:
        return []
    entries = [ir.DictAttr(entry) for entry in ir.ArrayAttr(main.attributes[kind])]
    return [str(entry[name]) if name in entry else None for entry in entries]


def shardings(lowered: Lowered) -> list[str | None]:
    found = attributes(lowered.module, "arg_attrs", "sdy.sharding")
    return [text and text.removeprefix("#sdy.sharding<@mesh, ").removesuffix(">") for text in found]


def test_training_step(mesh: MpmdMesh, marked: Any) -> None:
    def train_step(state: dict[str, Any], batch: Any, *, rate: float = 0.1) -> Any:
        losses, grads = treduce(
            lambda mb: jax.value_and_grad(marked.loss)(state["params"], mb), batch, operation=(Concat(), Add)
        )
        params = jax.tree.map(lambda p, g: p - rate * g, state["params"], grads)
        return {"params": params, "step": state["step"] + 1}, losses.mean()

    args = ({"params": marked.params(), "step": 0}, marked.batch())
    lowered = lower(
        train_step,
        args,
        {"rate": 0.5},
        mpmd_mesh=mesh,
        in_shardings=(P(), P(None, "data")),
        donate_argnums=0,
        schedule="the\nschedule",
    )
    assert lowered.in_names == (
        *(f"state['params'][{k}]" for k in range(3)),
        *("state['step']", "batch['x']", "batch['y']", "rate"),
    )
    assert lowered.out_names == (*(f"result[0]['params'][{k}]" for k in range(3)), "result[0]['step']", "result[1]")
    assert lowered.donated == (True,) * 4 + (False,) * 3
    assert [aval.shape for aval in lowered.in_avals] == [(4, 4)] * 3 + [()] + [(5, 2, 4)] * 2 + [()]
    assert [aval.weak_type for aval in lowered.in_avals] == [False] * 3 + [True] + [False] * 2 + [True]
    assert lowered.out_avals[-1].shape == ()
    assert lowered.in_tree == jax.tree.structure((args, {"rate": 0.5}))
    assert lowered.out_tree.num_leaves == 5
    assert shardings(lowered)[:6] == ["[{}, {}]"] * 3 + ["[]"] + ['[{}, {"data"}, {}]'] * 2
    feeds = attributes(lowered.module, "res_attrs", "jaxpp.feeds")
    assert feeds == ["0 : i64", "1 : i64", "2 : i64", "3 : i64", None]
    donors = attributes(lowered.module, "arg_attrs", "jax.buffer_donor")
    assert donors == ["true"] * 4 + [None] * 3
    assert '{length = 5 : i64, schedule = "the\\0Aschedule"}' in str(lowered.module)
    assert lowered.module.operation.verify()
    assert str(lowered.module).startswith("module @jit_train_step")


def test_module_is_the_callers_own(mesh: MpmdMesh) -> None:
    f = lambda x: x + 1  # noqa: E731
    first = lower(f, (X,), mpmd_mesh=mesh)
    main_of(first.module).erase()
    assert main_of(lower(f, (X,), mpmd_mesh=mesh).module)
    np.testing.assert_array_equal(jax.jit(f)(X), X + 1)


def test_marks_count_from_zero_each_time(mesh: MpmdMesh) -> None:
    f = lambda x: mark_stage_end(mark_stage_end(x) + 1)  # noqa: E731
    jax.jit(f)(X)
    for _ in range(2):
        text = str(lower(f, (X,), mpmd_mesh=mesh).module)
        assert [f"stage = {k} " in text for k in range(3)] == [True, True, False]


def test_a_schedule_of_treduces_own_wins(mesh: MpmdMesh) -> None:
    f = lambda x: treduce(lambda mb: mb, x, schedule="zb-h1", operation=Add)  # noqa: E731
    text = str(lower(f, (X,), mpmd_mesh=mesh, schedule="1f1b").module)
    assert 'schedule = "zb-h1"' in text


def test_arrays_on_any_devices(mesh: MpmdMesh) -> None:
    """Those on a mesh with our axes keep their PartitionSpec, but for the mpmd axis."""
    whole, other = mesh.jax_mesh, Mesh(np.array(jax.devices()[6:8]), ("data",))
    arrays = {
        "whole": jax.device_put(X, NamedSharding(whole, P("data"))),
        "one": jax.device_put(X, NamedSharding(mesh.unstack[2], P(None, "data"))),
        "two": jax.device_put(X, NamedSharding(mesh.mpmd_submesh([1, 2]).jax_mesh, P(("mpmd", "data")))),
        "mpmd": jax.device_put(X, NamedSharding(mesh.mpmd_submesh([0, 1]).jax_mesh, P("mpmd"))),
        "device": jax.device_put(X, jax.devices()[7]),
        "other mesh": jax.device_put(X, NamedSharding(other, P("data"))),
        "numpy": X,
    }
    f = lambda *arrays: sum(arrays)  # noqa: E731
    lowered = lower(f, tuple(arrays.values()), mpmd_mesh=mesh)
    rows, columns = '[{"data"}, {}]', '[{}, {"data"}]'
    assert shardings(lowered) == [rows, columns, rows, "[{}, {}]", None, None, None]
    assert lowered.in_names == tuple(f"args[{k}]" for k in range(7))
    asked = lower(f, tuple(arrays.values()), mpmd_mesh=mesh, in_shardings=NamedSharding(mesh.unstack[1], P("data")))
    assert shardings(asked) == [rows] * 7


class Pair(NamedTuple):
    a: Any
    b: Any


def test_in_shardings_are_a_prefix(mesh: MpmdMesh) -> None:
    args = (Pair(X, {"c": X, "none": None}), "static", [X, X])
    lowered = lower(
        lambda pair, how, xs: (pair, xs),
        args,
        mpmd_mesh=mesh,
        static_argnums=1,
        in_shardings=(Pair(P("data"), None), [P(None, "data"), NamedSharding(mesh.jax_mesh, P())]),
    )
    assert shardings(lowered) == ['[{"data"}, {}]', None, '[{}, {"data"}]', "[{}, {}]"]
    assert lowered.in_names == ("pair.a", "pair.b['c']", "xs[0]", "xs[1]")


@pytest.mark.parametrize(
    "options",
    [
        {"static_argnums": 1},
        {"static_argnums": -1},
        {"static_argnums": [1]},
        {"static_argnums": np.int64(1)},
        {"static_argnames": "act"},
        {"static_argnames": ("act",)},
        {"static_argnums": 1, "static_argnames": "act"},
    ],
    ids=str,
)
def test_static_arguments(mesh: MpmdMesh, options: dict[str, Any]) -> None:
    f = lambda x, act: getattr(jnp, act)(x)  # noqa: E731
    positional = lower(f, (X, "tanh"), mpmd_mesh=mesh, in_shardings=(P("data"),), **options)
    assert "stablehlo.tanh" in str(positional.module)
    assert positional.in_names == ("x",)
    if options["static_argnums" if "static_argnums" in options else "static_argnames"] != -1:
        by_name = lower(f, (X,), {"act": "sin"}, mpmd_mesh=mesh, **options)
        assert "stablehlo.sine" in str(by_name.module)


def test_unused_arguments_stay(mesh: MpmdMesh) -> None:
    lowered = lower(lambda x, unused: x, (X, {"k": jax.random.key(0), "n": X}), mpmd_mesh=mesh)
    assert len(ir.ArrayAttr(main_of(lowered.module).attributes["arg_attrs"]) or [1] * 3) == 3
    assert lowered.in_names == ("x", "unused['k']", "unused['n']")


def test_callables_of_every_kind(mesh: MpmdMesh, operations: Callable[..., list[Any]]) -> None:
    class Step:
        def __call__(self, x: jax.Array) -> jax.Array:
            return mark_stage_end(x)

    def step(scale: float, x: jax.Array) -> jax.Array:
        return mark_stage_end(x * scale)

    @jax.jit
    def jitted(x: jax.Array) -> jax.Array:
        return mark_stage_end(x)

    for fun, name in ((Step(), "Step"), (functools.partial(step, 2.0), "step"), (jitted, "jitted")):
        lowered = lower(fun, (X,), mpmd_mesh=mesh)
        assert lowered.in_names == ("x",)
        assert str(lowered.module).startswith(f"module @jit_{name} ")
        assert len(operations(lowered.module, "stablehlo.optimization_barrier")) == 1


def test_x64(mesh: MpmdMesh) -> None:
    with jax.enable_x64(True):
        lowered = lower(lambda x, n: x * n, (np.ones(3), 2), mpmd_mesh=mesh)
    assert [str(aval.dtype) for aval in lowered.in_avals] == ["float64", "int64"]


def test_meshes_of_the_context_are_fine(mesh: MpmdMesh) -> None:
    with jax.set_mesh(mesh.jax_mesh):
        lowered = lower(lambda x: x + 1, (X,), mpmd_mesh=mesh, in_shardings=P("data"))
    assert shardings(lowered) == ['[{"data"}, {}]']


def test_locations_are_the_users(mesh: MpmdMesh, operations: Callable[..., list[Any]]) -> None:
    lowered = lower(lambda x: treduce(lambda mb: mark_stage_end(mb), x, operation=Add), (X,), mpmd_mesh=mesh)
    for name in ("stablehlo.while", "stablehlo.optimization_barrier"):
        (op,) = operations(lowered.module, name)
        assert "test_lower.py" in str(op.location)
        assert "/lowering/lower.py" not in str(op.location).replace("tests/unit", "")


def test_side_effects(mesh: MpmdMesh) -> None:
    def f(x: jax.Array, ordered: bool) -> jax.Array:
        jax.debug.print("{}", x, ordered=ordered)
        return x

    assert len(lower(f, (X, False), mpmd_mesh=mesh, static_argnums=1).host_callbacks) == 1
    assert lower(lambda x: x, (X,), mpmd_mesh=mesh).host_callbacks == ()
    with pytest.raises(ValueError, match=r"an ordered side effect, such as .* has no order across meshes"):
        lower(f, (X, True), mpmd_mesh=mesh, static_argnums=1)


ERRORS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "not an array": (
        {"args": (X, {"act": "gelu"})},
        TypeError,
        "argument b['act'] is of type str ('gelu'), not an array; "
        "if b is a Python value, name it in static_argnums or static_argnames",
    ),
    "in a keyword": (
        {"args": (X,), "kwargs": {"b": len}},
        TypeError,
        "argument b is of type builtin_function_or_method (<built-in function len>), not an array",
    ),
    "byte order": (
        {"args": (X, np.ones((4, 4), ">f4"))},
        TypeError,
        "argument b is a numpy array of '>f4', in another byte order than this machine's: give x.astype('float32')",
    ),
    "mpmd axis": (
        {"in_shardings": (P("data", "mpmd"), None)},
        ValueError,
        "in_shardings for a: P('data', 'mpmd') shards over the mpmd axis 'mpmd'; a value lives on whole submeshes, "
        "unless it is a stack of layers that the loop reads one by one, as many for each mesh: shard it over ('data',)",
    ),
    "unknown axis": (
        {"in_shardings": (None, P("model"))},
        ValueError,
        "in_shardings for b: P('model',) names the axis 'model'; the mesh has",
    ),
    "rank": (
        {"in_shardings": P("data", None, None)},
        ValueError,
        "in_shardings for a: P('data', None, None) has 3 entries, but the argument has shape (4, 4)",
    ),
    "rank of a scalar": (
        {"args": (np.float32(1), X), "in_shardings": (P("data"), P())},
        ValueError,
        "in_shardings for a: P('data',) has 1 entry, but the argument has shape ()",
    ),
    "indivisible": (
        {"args": (np.ones(3), X), "in_shardings": P("data")},
        ValueError,
        "in_shardings for a: P('data',) cuts a dimension of 3 into 2; shape (3,)",
    ),
    "kind": ({"in_shardings": "data"}, ValueError, "in_shardings: str for 2 positional arguments that are not static"),
    "length": (
        {"in_shardings": (P(),)},
        ValueError,
        "in_shardings: 1 entry for 2 positional arguments that are not static",
    ),
    "tree": (
        {"args": (X, {"c": X}), "in_shardings": (P(), {"d": P()})},
        ValueError,
        "in_shardings[1] does not fit its argument: ",
    ),
    "leaf": ({"in_shardings": (None, "data")}, TypeError, "in_shardings for b: str; expected a NamedSharding, a"),
    "result axis": (
        {"out_shardings": P("model")},
        ValueError,
        "out_shardings: P('model',) names the axis 'model'; the mesh has",
    ),
    "result rank": (
        {"args": (X, {"c": X}), "out_shardings": P("data", None, None), "fun": lambda a, b: (a, b)},
        ValueError,
        "out_shardings for result[0]: P('data', None, None) has 3 entries, but the result has shape (4, 4)",
    ),
    "result indivisible": (
        {"args": (X, {"c": np.ones(3)}), "out_shardings": (None, P("data")), "fun": lambda a, b: (a, b)},
        ValueError,
        "out_shardings for result[1]['c']: P('data',) cuts a dimension of 3 into 2; shape (3,)",
    ),
    "result tree": (
        {"args": (X, {"c": X}), "out_shardings": (None, {"d": P()}), "fun": lambda a, b: (a, b)},
        ValueError,
        "out_shardings do not fit what the function returns, ((*, {'c': *})); give one sharding, or a pytree of",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_error(mesh: MpmdMesh, name: str) -> None:
    given, kind, text = ERRORS[name]
    options = dict(given)
    with pytest.raises(kind) as info:
        lower(options.pop("fun", lambda a, b: a), options.pop("args", (X, X)), mpmd_mesh=mesh, **options)
    assert text in str(info.value)
    assert len(str(info.value).splitlines()) == 1


def test_the_mpmd_axis_among_others_and_of_results(mesh: MpmdMesh) -> None:
    """As JaxPP's scripts name it; its size is 1 on each submesh."""
    specs = (P(None, ("mpmd", "data")), P(("data", "mpmd"), None))
    lowered = lower(
        lambda a, b: (a, b), (X, X), mpmd_mesh=mesh, in_shardings=specs, out_shardings=(P(None, "mpmd"), *specs[:1])
    )
    assert shardings(lowered) == ['[{}, {"data"}]', '[{"data"}, {}]']
    results = attributes(lowered.module, "res_attrs", "sdy.sharding")
    assert results == ["#sdy.sharding<@mesh, [{}, {}]>", '#sdy.sharding<@mesh, [{}, {"data"}]>']


def test_memories_of_arguments_and_results(mesh: MpmdMesh) -> None:
    """They are written on `@main`; the functions that are traced know nothing of them."""
    host = NamedSharding(mesh.jax_mesh, P(), memory_kind="pinned_host")
    device = NamedSharding(mesh.jax_mesh, P(), memory_kind="device")
    lowered = lower(
        lambda a, b: (a, b["c"] + a),
        (X, {"c": X}),
        mpmd_mesh=mesh,
        in_shardings=(device, MpmdSharding(mesh, {0}, P(), memory_kind="pinned_host")),
        out_shardings=(None, host),
    )
    assert attributes(lowered.module, "arg_attrs", "mhlo.memory_kind") == [None, '"pinned_host"']
    assert attributes(lowered.module, "res_attrs", "mhlo.memory_kind") == [None, '"pinned_host"']


def test_error_of_another_memory(mesh: MpmdMesh) -> None:
    elsewhere = NamedSharding(mesh.jax_mesh, P(), memory_kind="unpinned_host")
    text = "memory_kind='unpinned_host'; values of a step are in the memory of its devices or in 'pinned_host'"
    with pytest.raises(ValueError, match=re.escape(f"in_shardings for b['c']: {text}")):
        lower(lambda a, b: a, (X, {"c": X}), mpmd_mesh=mesh, in_shardings=(None, elsewhere))
    elsewhere = MpmdSharding(mesh, {0}, P(), memory_kind="unpinned_host")
    with pytest.raises(ValueError, match=re.escape(f"out_shardings[1]['c']: {text}")):
        lower(lambda a: (a, {"c": a}), (X,), mpmd_mesh=mesh, out_shardings=(None, {"c": elsewhere}))
    text = "memory_kind='pinned_host'; the functions of a step make values in the memory of its devices ('device')"
    with pytest.raises(ValueError, match=re.escape(f"result['c']: {text}: give the result its memory_kind in")):
        lower(lambda a: {"b": a, "c": jax.device_put(a, jax.memory.Space.Host)}, (X,), mpmd_mesh=mesh)
