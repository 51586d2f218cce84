"""How a step is called: kinds of arguments, donation, recompiling, lowering ahead; its compiles and its memory."""

# pyright: reportUnknownLambdaType=false

import gc
import pickle
import re
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from unit.activations import peak_activations
from unit.end_to_end.compare import assert_same, batch, check, counted_compiles, make_mesh, pointers, sgd_step, weights
from unit.runtime.programs import Live, watched

import jaxpp.api as jaxpp
from jaxpp.ir.program import Call
from jaxpp.runtime import load

SCHEDULE = jaxpp.Std1F1B(2)
step = partial(sgd_step, schedule=SCHEDULE)


class Counted:
    """A step of one stage with a scale, that counts how often it is traced."""

    def __init__(self) -> None:
        self.traces = 0

    def __call__(self, params: Any, batch: Any, scale: Any = 1.0) -> Any:
        self.traces += 1
        params, losses = sgd_step(params, batch, schedule=jaxpp.GPipe(1))
        return params, losses * scale


def test_recompiles_when_jax_jit_does() -> None:
    counted = Counted()
    ours, plain = jaxpp.mpmd_jit_with_loop(counted, mpmd_mesh=make_mesh(1)), jax.jit(counted)
    params, data = weights(1), batch(3)
    seen: list[int] = []

    def both(*args: Any, **kwargs: Any) -> None:
        before = counted.traces
        found = ours(*args, **kwargs)
        between = counted.traces
        assert_same(found, plain(*args, **kwargs))
        assert between - before == counted.traces - between
        seen.append(between - before)

    both(params, data)
    both([np.asarray(w) for w in params], jax.tree.map(jnp.asarray, data))
    both(params, batch(4))
    both([w.astype(jnp.bfloat16) for w in params], data)
    both(tuple(params), data)
    both(params, data, 2.0)
    both(params, data, 3.0)
    both(params, data, 3)
    both(params, data, scale=3.0)
    assert seen == [1, 0, 1, 1, 1, 1, 0, 1, 1]


def test_static_arguments() -> None:
    traces: list[Any] = []

    def scaled(params: Any, batch: Any, scale: float, *, mode: str) -> Any:
        traces.append((scale, mode))
        params, losses = step(params, batch)
        return params, losses * scale if mode == "multiply" else losses + scale

    ours = jaxpp.mpmd_jit_with_loop(scaled, mpmd_mesh=make_mesh(2), static_argnums=2, static_argnames="mode")
    for scale, mode in [(2.0, "multiply"), (3.0, "multiply"), (2.0, "add"), (2.0, "multiply")]:
        found = ours(weights(2), batch(3), scale, mode=mode)
        assert_same(found, scaled(weights(2), batch(3), scale, mode=mode))
    assert len(traces) == 4 + 3, "each call of the reference, and each kind of call once"


@pytest.mark.parametrize(
    ("given", "named", "message"),
    [
        (
            ((np.ones(3), 2),),
            {},
            "argument 0 (`scale`) holds arrays and cannot be static: take it out of static_argnums or static_argnames",
        ),
        ((jnp.ones(3),), {}, "argument 0 (`scale`) holds arrays and cannot be static: "),
        ((2, {"a": jnp.ones(3)}), {}, "argument 1 holds arrays and cannot be static: "),
        ((), {"mode": [jnp.ones(3)]}, "argument mode holds arrays and cannot be static: "),
        (
            ([1, 2],),
            {},
            "static argument 0 is a list that is not hashable (unhashable type: 'list'); "
            "give hashable values, such as tuples for lists",
        ),
        (((1, {}),), {}, "static argument 0 is a tuple that is not hashable (unhashable type: 'dict'); "),
    ],
)
def test_static_arguments_that_can_not_be_compared(given: Any, named: Any, message: str) -> None:
    def scaled(scale: Any, *rest: Any, mode: Any = None) -> Any:
        raise AssertionError("it is not traced")

    ours = jaxpp.mpmd_jit_with_loop(scaled, make_mesh(1), static_argnums=(0, 1), static_argnames="mode")
    with pytest.raises(TypeError, match="^" + re.escape(message)):
        ours(*given, **named)


def test_keyword_arguments_and_defaults() -> None:
    def keywords(params: Any, *, batch: Any, scale: Any = 2.0) -> Any:
        params, losses = step(params, batch)
        return params, losses * scale

    mesh = make_mesh(2)
    check(keywords, (weights(2),), mesh, kwargs={"batch": batch(3)})
    check(keywords, (), mesh, kwargs={"batch": batch(3), "params": weights(2), "scale": 3})


def test_arguments_come_from_any_device() -> None:
    devices = jax.devices()
    params = [jax.device_put(w, devices[7 - k]) for k, w in enumerate(weights(2))]
    found, _ = jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=make_mesh(2))(params, jax.device_put(batch(3), devices[5]))
    assert_same(found, jax.jit(step)(weights(2), batch(3))[0])
    assert [w.devices() for w in params] == [{devices[7 - k]} for k in range(2)], "they stay where they are"


@pytest.mark.parametrize("data", [1, 2])
def test_results_fed_back_move_nothing(data: int) -> None:
    ours = jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=make_mesh(2, data=data), in_shardings=(P(), P(None, "data")))
    params, _ = ours(weights(2), batch(3))
    compiled = ours.lower(params, batch(3)).compile()
    seen: set[int] = set()

    def look(_: Any, __: Any, registers: Sequence[Any]) -> None:
        seen.update(pointers([array for array in registers if array is not None and not array.is_deleted()]))

    executable: Any = compiled.executable
    executable.run(jax.tree.leaves((params, batch(3))), look)
    assert seen.issuperset(pointers(params)), "the stages read the very buffers that came in"


def test_decorator() -> None:
    @partial(jaxpp.mpmd_jit_with_loop, mpmd_mesh=make_mesh(2), donate_argnums=(0,))
    def train_step(params: Any, batch: Any) -> Any:
        """Train."""
        return step(params, batch)

    assert (vars(train_step)["__name__"], train_step.__doc__) == ("train_step", "Train.")
    assert_same(train_step(weights(2), batch(3)), jax.jit(step)(weights(2), batch(3)))


@pytest.mark.parametrize(
    ("options", "by_name"),
    [({"donate_argnums": 0}, False), ({"donate_argnames": "params"}, False), ({"donate_argnames": ["params"]}, True)],
)
def test_donated_arrays_are_gone(options: dict[str, Any], by_name: bool) -> None:
    def train_step(params: Any, batch: Any) -> Any:
        return step(params, batch)

    ours = jaxpp.mpmd_jit_with_loop(train_step, mpmd_mesh=make_mesh(2), **options)
    params, data = weights(2), jax.tree.map(jnp.asarray, batch(3))
    new, _ = ours(params=params, batch=data) if by_name else ours(params, data)
    assert all(w.is_deleted() for w in params)
    assert not any(x.is_deleted() for x in jax.tree.leaves(data))
    newer, _ = ours(params=new, batch=data) if by_name else ours(new, data)
    assert all(w.is_deleted() for w in new)
    expected, _ = jax.jit(step)(jax.jit(step)(weights(2), data)[0], data)
    assert_same(newer, expected)


def test_lowered_ahead_of_time() -> None:
    args = (weights(2), batch(3))
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), args)
    lowered = jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=make_mesh(2)).lower(*shapes)
    assert "jaxpp.microbatch_loop" in lowered.as_text()
    assert "test_calls.py" in lowered.as_text(debug_info=True)
    assert re.findall(r"func public @(\w+)", lowered.program().as_text()) == ["mesh_0", "mesh_1"]
    compiled = lowered.compile()
    assert_same(compiled(*args), jax.jit(step)(*args))
    with pytest.raises(
        TypeError,
        match=r"found 1 positional argument, expected 2: params, batch: the step was compiled for that structure",
    ):
        compiled(args[0])
    message = r"argument `batch\['x'\]` is float32\[4, 4, 8\]; the program was compiled for float32\[3, 4, 8\]"
    with pytest.raises(ValueError, match=message):
        compiled(args[0], batch(4))


def test_what_one_way_compiles_the_others_use() -> None:
    ours = jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=make_mesh(2))
    args = (weights(2), batch(3))
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), args)
    with counted_compiles() as first:
        lowered = ours.lower(*shapes)
        wanted, returned = lowered.in_shardings, lowered.out_shardings
        assert first.count == 0
        compiled = lowered.compile()
    assert first.count > 0
    with counted_compiles() as later:
        assert ours.compile(*args) is ours.compile(*shapes) is lowered.compile() is compiled
        again = ours.lower(*args)
        assert again.compile() is compiled
        assert again.program().as_text() == lowered.program().as_text()
        found = ours(*args)
    assert later.count == 0
    assert_same(found, jax.jit(step)(*args))
    assert (repr(wanted), repr(returned)) == (repr(compiled.in_shardings), repr(compiled.out_shardings))
    assert ours.compile(weights(2), batch(4)) is not compiled


@pytest.mark.parametrize("options", [{}, {"in_shardings": (P(), P(None, "data"))}])
def test_what_was_compiled_serves_its_own_results(options: dict[str, Any]) -> None:
    ours = jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=make_mesh(2, data=2), **options)
    after, _ = ours(weights(2), batch(2))
    compiled = ours.compile(weights(2), batch(2))
    with counted_compiles() as later:
        assert ours.compile(after, batch(2)) is ours.lower(after, batch(2)).compile() is compiled
    assert later.count == 0


def test_what_is_lowered_for_other_shardings_is_another_program() -> None:
    mesh = make_mesh(2, data=2)
    ours = jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=mesh)
    sharded = [
        jax.device_put(w, NamedSharding(each, P("data"))) for w, each in zip(weights(2), mesh.unstack, strict=True)
    ]
    first, second = ours.compile(weights(2), batch(2)), ours.compile(sharded, batch(2))
    assert [each.spec for each in jax.tree.leaves(first.in_shardings)[:2]] == [P(), P()]
    assert [each.spec for each in jax.tree.leaves(second.in_shardings)[:2]] == [P("data"), P("data")]
    assert ours(sharded, batch(2))[0][0].sharding.spec == P(), "the first one decides"


def test_wide_numbers_of_numpy_are_of_the_kind_that_jax_computes_with() -> None:
    def counts(params: Any, data: Any) -> Any:
        return sgd_step(params, {name: x.astype(np.float32) for name, x in data.items()}, schedule=SCHEDULE)

    params, data = weights(2), jax.tree.map(lambda x: (8 * x).astype(np.int64), batch(2))
    ours = jaxpp.mpmd_jit_with_loop(counts, make_mesh(2))
    made = ours.compile(params, jax.eval_shape(lambda x: x, data))  # shapes of int32
    assert ours.compile(params, data) is made
    assert ours.compile(params, jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, np.int64), data)) is made
    assert_same(ours(params, data), jax.jit(counts)(params, data))


@pytest.mark.parametrize("clear", ["jax.clear_caches", "step.clear_cache"])
def test_caches_are_cleared(clear: str) -> None:
    ours = jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=make_mesh(2))
    args = (weights(2), batch(3))
    ours(*args)
    program = weakref.ref(ours.compile(*args).executable)
    jax.clear_caches() if clear == "jax.clear_caches" else ours.clear_cache()
    gc.collect()
    assert program() is None
    assert_same(ours(*args), jax.jit(step)(*args))


@pytest.mark.parametrize("is_compiled", [False, True])
def test_types_of_results_and_transformations(is_compiled: bool) -> None:
    ours = jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=make_mesh(2))
    args = (weights(2), batch(3))
    if is_compiled:
        ours(*args)
    expected = jax.eval_shape(step, *args)
    assert jax.eval_shape(ours, *args) == ours.eval_shape(*args) == expected
    assert [each.aval for each in jax.make_jaxpr(ours)(*args).jaxpr.outvars] == [
        jax.typeof(each) for each in jax.tree.leaves(expected)
    ]
    stacked = [jnp.stack([w, w]) for w in args[0]]
    for function in [ours, *([ours.compile(*args)] if is_compiled else [])]:
        for transformed in (
            lambda: jax.jit(function)(*args),  # noqa: B023
            lambda: jax.grad(lambda *given: function(*given)[1].sum())(*args),  # noqa: B023
            lambda: jax.vmap(function, in_axes=(0, None))(stacked, args[1]),  # noqa: B023
        ):
            with pytest.raises(TypeError, match=r"was called inside jax\.jit, jax\.grad, jax\.vmap or another"):
                transformed()


def test_steps_are_not_pickled() -> None:
    ours = jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=make_mesh(2))
    with pytest.raises(TypeError, match=r"can't be pickled, .*: pickle its function and call mpmd_jit_with_loop there"):
        pickle.dumps(ours)
    with pytest.raises(TypeError, match=r"can't be pickled, .*: compiled\.save\(path\) and jaxpp\.load\(path\) do it"):
        pickle.dumps(ours.compile(weights(2), batch(3)))


LIKE_A_DICT = {"x": np.ones((3, 4, 8), np.float32)}
UNLIKE: dict[str, tuple[tuple[Any, ...], str]] = {
    "none": ((None, batch(3)), "argument `params` is None; the function raised TypeError: 'NoneType' object is not"),
    "one none": (([weights(2)[0], None], batch(3)), "argument `params[1]` is None; the function raised TypeError: "),
    "a list": ((weights(2), [batch(3)["x"]]), "argument `batch` is a list, expected a dict; the function raised"),
    "a missing leaf": ((weights(2), LIKE_A_DICT), "argument `batch` lacks ['y']; the function raised KeyError: 'y'"),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_arguments_unlike_those_before(name: str) -> None:
    ours = jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=make_mesh(2))
    args, text = UNLIKE[name]
    ours(weights(2), batch(3))
    with pytest.raises(TypeError, match="^" + re.escape(text)):
        ours(*args)
    with pytest.raises(TypeError, match=r"argument `.*: the step was compiled for that structure$"):
        ours.compile(weights(2), batch(3))(*args)


def test_a_function_that_fails_in_the_first_call_names_its_arguments() -> None:
    ours = jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=make_mesh(2))
    with pytest.raises(KeyError) as caught:
        ours(weights(2), LIKE_A_DICT)
    (note,) = [each for each in caught.value.__notes__ if each.startswith("jaxpp")]
    assert note == (
        "jaxpp: while tracing it for params = [float32[8, 8], float32[8, 8]], batch = {'x': float32[3, 4, 8]}"
    )


@pytest.mark.parametrize("data", [1, 2])
def test_one_compile_for_each_distinct_program(data: int) -> None:
    ours = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule=jaxpp.Std1F1B(4)), mpmd_mesh=make_mesh(4, data=data))
    args = (weights(4), batch(3))
    program = ours.lower(*args).program().as_text()
    with counted_compiles() as first:
        params, _ = ours(*args)
    assert first.count == program.count("func.func private")
    assert program.count("@forward_1") == 1 + 2 * 3, "defined once, called by two equal stages"
    with counted_compiles() as later:
        ours(params, args[1])
    assert later.count == 0


@pytest.mark.parametrize("microbatches", [2, 6])
@pytest.mark.parametrize("schedule", [jaxpp.GPipe, jaxpp.Std1F1B])
def test_live_activations(schedule: type[jaxpp.BaseSchedule], microbatches: int) -> None:
    """Microbatches of which a mesh holds residuals: seen in a real step, and what `verify-program` says."""
    stages = 4
    args = (weights(stages), batch(microbatches))
    lowered = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule=schedule(stages)), mpmd_mesh=make_mesh(stages)).lower(
        *args
    )
    compiled = lowered.compile()
    made_for: list[dict[int, int]] = [{} for _ in range(stages)]
    peaks = [0] * stages

    def look(mesh: int, instruction: Any, live: Live) -> None:
        if isinstance(instruction, Call) and instruction.kind == "forward" and instruction.microbatch is not None:
            made_for[mesh].update(dict.fromkeys(instruction.results, instruction.microbatch))
        alive = {register for register, array in live[mesh].items() if not array.is_deleted()}
        peaks[mesh] = max(peaks[mesh], len({made_for[mesh][register] for register in alive & made_for[mesh].keys()}))

    executable: Any = compiled.executable
    executable.run(jax.tree.leaves(args), watched(executable, look))
    said = peak_activations(load(lowered.program().module))
    ahead = [min(microbatches, stages - mesh) for mesh in range(stages)]
    assert peaks == said == (ahead if schedule is jaxpp.Std1F1B else [microbatches] * stages)
