"""Steps of explicit tasks (`jaxpp.experimental.mpmd`) compute what `jax.jit` computes, and errors name the way out."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import jaxpp
from jaxpp.experimental import mpmd
from jaxpp.ir.errors import PassError

SPEC, WHOLE = PartitionSpec("data"), PartitionSpec()


def mesh_of(data: int = 2, kind: AxisType = AxisType.Auto) -> mpmd.MpmdMesh:
    devices = np.array(jax.devices()[: 2 * data]).reshape(2, data)
    return mpmd.MpmdMesh(Mesh(devices, ("pp", "data"), axis_types=(kind, kind)), "pp")


def on(mesh: mpmd.MpmdMesh, number: int, spec: PartitionSpec = SPEC) -> NamedSharding:
    return NamedSharding(mesh.unstack[number], spec)


def layer(w: Any, x: Any) -> Any:
    return jax.nn.relu(x @ w)


def forward(w: Any, x: Any) -> Any:
    """The result of a layer, and what its backward reads."""
    return layer(w, x), (w, x)


def backward(total: Any, kept: Any, gradient: Any) -> Any:
    _, pull = jax.vjp(layer, *kept)
    of_w, of_x = pull(gradient)
    return total + of_w, of_x


def last(total: Any, w: Any, x: Any, y: Any) -> Any:
    def loss(w: Any, x: Any) -> Any:
        return jnp.mean((layer(w, x) - y) ** 2)

    value, (of_w, of_x) = jax.value_and_grad(loss, argnums=(0, 1))(w, x)
    return value, total + of_w, of_x


def zeros(w: Any) -> Any:
    return jnp.zeros_like(w)


def make() -> Any:
    return jnp.arange(3)


def both(x: Any) -> Any:
    return x, x


def nothing(x: Any) -> Any:
    del x


def argument(mesh: mpmd.MpmdMesh, x: Any) -> Any:
    del mesh
    return x


def train_step(mesh: mpmd.MpmdMesh, weights: Any, batch: Any) -> Any:
    """Two microbatches on two stages: the first stage goes on while the second one computes."""
    (first, second), (xs, ys) = weights, batch
    here, there = (partial(on, mesh, number) for number in range(2))
    totals = [mpmd.task(zeros, out_shardings=at(WHOLE))(w) for at, w in ((here, first), (there, second))]
    kept: list[Any] = []
    sent: list[Any] = []
    for x in xs:
        run = mpmd.task(forward, out_shardings=(here(SPEC), (here(WHOLE), here(SPEC))), name="forward")
        hidden, residuals = run(first, x)
        kept.append(residuals)
        sent.append(mpmd.transfer(hidden, out_shardings=there(SPEC)))
    losses: list[Any] = []
    for future, y, residuals in zip(sent, ys, kept, strict=True):
        run = mpmd.task(last, out_shardings=(there(WHOLE), there(WHOLE), there(SPEC)))
        value, totals[1], gradient = run(totals[1], second, future.done(), y)
        losses.append(value)
        gradient = mpmd.transfer({"of": gradient}, out_shardings={"of": here(SPEC)}).done()["of"]
        run = mpmd.task(backward, out_shardings=(here(WHOLE), here(SPEC)))
        totals[0], _ = run(totals[0], residuals, gradient)

    @mpmd.task(out_shardings=WHOLE)
    def update(w: Any, *, gradient: Any) -> Any:
        return w - 0.1 * gradient

    return [update(first, gradient=totals[0]), update(second, gradient=totals[1])], losses


def plain_step(weights: Any, batch: Any) -> Any:
    def loss(weights: Any, x: Any, y: Any) -> Any:
        for w in weights:
            x = layer(w, x)
        return jnp.mean((x - y) ** 2)

    found = [jax.value_and_grad(loss)(weights, x, y) for x, y in zip(*batch, strict=True)]
    gradients = [sum(each) for each in zip(*(gradient for _, gradient in found), strict=True)]
    return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)], [value for value, _ in found]


def arguments() -> Any:
    random = np.random.default_rng(0)
    draw = partial(random.standard_normal, dtype="f4")
    return [draw((8, 8)) for _ in range(2)], tuple([draw((4, 8)) for _ in range(2)] for _ in range(2))


def step_of(mesh: mpmd.MpmdMesh, **options: Any) -> Any:
    shardings = ([on(mesh, 0, WHOLE), on(mesh, 1, WHOLE)], (on(mesh, 0), on(mesh, 1)))
    return mpmd.mpmd(mesh, in_shardings=shardings, **options)(partial(train_step, mesh))


@pytest.mark.parametrize(
    ("data", "kind"), [(1, AxisType.Auto), (2, AxisType.Auto), (2, AxisType.Explicit)], ids=("one", "auto", "explicit")
)
def test_a_training_step(data: int, kind: AxisType) -> None:
    weights, batch = arguments()
    step = step_of(mesh_of(data, kind), donate_argnums=0, infer_donation=True)
    found = expected = given = weights
    for _ in range(2):
        given = found
        found, losses = step(found, batch)
        expected, right = jax.jit(plain_step)(expected, batch)
        np.testing.assert_allclose([*map(float, losses)], [*map(float, right)], rtol=1e-5)
    assert all(array.is_deleted() for array in given)
    for number, (array, other) in enumerate(zip(found, expected, strict=True)):
        np.testing.assert_allclose(array, other, rtol=1e-5, atol=1e-6)
        assert array.sharding.device_set == {*mesh_of(data).unstack[number].devices.flat}


def test_equal_tasks_are_one_function_and_all_values_are_sent_once() -> None:
    lowered = step_of(mesh_of()).lower(*arguments())
    assert isinstance(lowered, mpmd.LoweredMpmdFun)
    text = lowered.program().as_text()
    assert text.count("func.func private @forward") == 1
    assert text.count('"stablehlo.send"') == 4
    weights, losses = lowered(*arguments())
    assert len(weights) == len(losses) == 2
    assert str(jaxpp.compare(step_of(mesh_of()), *arguments())).startswith("rounding")
    with pytest.raises(ValueError, match=r"^with_schedule: a step of explicit tasks has the order in which"):
        lowered.with_schedule("gpipe")
    with pytest.raises(ValueError, match=r"^tune: a step of explicit tasks has the order in which its function calls"):
        jaxpp.tune(step_of(mesh_of()), *arguments())


def test_meshes_of_other_sizes_and_a_saved_step(tmp_path: Path) -> None:
    devices = np.array(jax.devices())
    mesh = mpmd.MpmdMesh.of([Mesh(devices[:2], ("data",)), Mesh(devices[2:6], ("data",))])

    def step(x: Any) -> Any:
        hidden = mpmd.task(jnp.sin, out_shardings=on(mesh, 0))(x)
        return mpmd.task(jnp.sin, out_shardings=on(mesh, 1))(mpmd.transfer(hidden, out_shardings=on(mesh, 1)).done())

    x = np.arange(8, dtype="f4")
    compiled = mpmd.mpmd(mesh, in_shardings=on(mesh, 0))(step).lower(x).compile()
    compiled.save(tmp_path / "step")
    for each in (compiled, jaxpp.load(tmp_path / "step")):
        found = each(x)
        np.testing.assert_allclose(found, np.sin(np.sin(x)), rtol=1e-5, atol=1e-6)
        assert len(found.sharding.device_set) == 4


def run(fun: Callable[..., Any], *args: Any, shardings: Any = None) -> Any:
    """The results of a step of tasks on a mesh of two stages; its arguments are on the first one."""
    mesh = mesh_of()
    return mpmd.mpmd(mesh, in_shardings=shardings or on(mesh, 0, WHOLE))(partial(fun, mesh))(*args)


def test_what_a_step_may_return_and_take() -> None:
    """Arguments as they are or sent, a value twice, keys, constants of tasks, results that nobody uses."""
    table = np.arange(8, dtype="f4")

    def with_table(x: Any) -> Any:
        return x + table, x

    def draw(key: Any) -> Any:
        return jax.random.normal(key, (4,))

    def scaled_by(x: Any, factor: Any) -> Any:
        return x * factor

    def step(mesh: mpmd.MpmdMesh, x: Any, unused: Any, key: Any) -> Any:
        del unused
        there = on(mesh, 1, WHOLE)
        sent, of_key = mpmd.transfer((x, key), out_shardings=there).done()
        twice, _ = mpmd.task(with_table, out_shardings=there)(sent)
        drawn = mpmd.task(draw, out_shardings=there, name="a name/0")(of_key)
        made = mpmd.task(make, out_shardings=WHOLE, mesh=mesh.unstack[1])()
        scaled = mpmd.task(scaled_by, out_shardings=on(mesh, 0, SPEC))(x, np.float32(3))
        return x, sent, twice, twice, drawn, made, scaled, key

    x, key = np.arange(8, dtype="f4"), jax.random.key(1)
    found = run(step, x, x, key)
    expected = x, x, x + table, x + table, jax.random.normal(key, (4,)), np.arange(3), x * 3
    for array, other in zip(found, expected, strict=False):
        np.testing.assert_allclose(array, other, rtol=1e-6)
    homes = [array.sharding.device_set == {*mesh_of().unstack[1].devices.flat} for array in found[:7]]
    assert homes == [False, True, True, True, True, True, False]
    assert jnp.array_equal(jax.random.key_data(found[7]), jax.random.key_data(key))


def test_one_function_with_several_shardings() -> None:
    def double(x: Any) -> Any:
        return 2 * x

    def step(mesh: mpmd.MpmdMesh, x: Any) -> Any:
        split = mpmd.task(double, out_shardings=on(mesh, 0), in_shardings=on(mesh, 0))(x)
        again = mpmd.task(double, out_shardings=on(mesh, 0))(split)
        return mpmd.task(double, out_shardings=on(mesh, 0, WHOLE))(again), split

    whole, split = run(step, np.arange(8, dtype="f4"))
    np.testing.assert_array_equal(whole, 8 * np.arange(8))
    assert (whole.sharding.spec, split.sharding.spec) == (WHOLE, SPEC)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=("auto", "explicit"))
def test_a_task_changes_shardings(kind: AxisType) -> None:
    mesh = mesh_of(kind=kind)

    def step(x: Any) -> Any:
        run = mpmd.task(layer, in_shardings=(WHOLE, SPEC), out_shardings=SPEC, name="layer")
        split = run(x, x)
        sent = mpmd.transfer(split, out_shardings=on(mesh, 1)).done()
        return split, mpmd.task(layer, out_shardings=WHOLE)(sent, sent)

    x = np.eye(4, dtype="f4")
    split, whole = mpmd.mpmd(mesh, in_shardings=on(mesh, 0, WHOLE))(step)(x)
    np.testing.assert_array_equal([split, whole], [x, x])
    assert split.sharding.is_equivalent_to(on(mesh, 0), 2)
    assert whole.sharding.is_equivalent_to(on(mesh, 1, WHOLE), 2)

    def resharded(x: Any) -> Any:
        return mpmd.transfer(x, out_shardings=on(mesh, 1)).done()

    with pytest.raises(PassError, match=r"error: a transfer of a value with the sharding .*\n  transfer it as it is"):
        mpmd.mpmd(mesh, in_shardings=on(mesh, 0, WHOLE))(resharded)(x)


def test_one_value_goes_to_several_meshes() -> None:
    """Both transfers start before one is done; a task constrains its value by axes of its mesh alone."""
    devices = np.array(jax.devices()[:6]).reshape(3, 2)
    mesh = mpmd.MpmdMesh(Mesh(devices, ("pp", "data")), "pp")

    def constrained(x: Any) -> Any:
        return jax.lax.with_sharding_constraint(x + 1, SPEC)

    def step(x: Any) -> Any:
        futures = [mpmd.transfer(x, out_shardings=on(mesh, number)) for number in (1, 2)]
        same = mpmd.transfer(x, out_shardings=on(mesh, 0)).done()
        return [mpmd.task(constrained, out_shardings=SPEC)(each.done()) for each in futures], same

    x = np.arange(8, dtype="f4")
    found, same = mpmd.mpmd(mesh, in_shardings=on(mesh, 0))(step)(x)
    for number, array in zip((1, 2, 0), (*found, same), strict=True):
        np.testing.assert_array_equal(array, x + (number > 0))
        assert array.sharding.is_equivalent_to(on(mesh, number), 1)


def test_out_shardings_are_required() -> None:
    with pytest.raises(TypeError, match="required keyword-only argument: 'out_shardings'"):
        mpmd.task(zeros)  # pyright: ignore[reportCallIssue]


def test_no_task_outside_of_a_step() -> None:
    mesh = mesh_of()
    task = mpmd.task(zeros, out_shardings=on(mesh, 0))

    def outer(mesh: mpmd.MpmdMesh, x: Any) -> Any:
        return mpmd.task(task, out_shardings=on(mesh, 0), name="outer")(x)

    with pytest.raises(ValueError, match=r"mpmd\.task was called outside of a function of mpmd\.mpmd"):
        task(np.zeros(4))
    with pytest.raises(ValueError, match=r"mpmd\.transfer was called outside of a function of mpmd\.mpmd"):
        mpmd.transfer(np.zeros(4), out_shardings=on(mesh, 0))
    with pytest.raises(ValueError, match=r"mpmd\.task was called inside of the task 'outer'"):
        run(outer, np.zeros(4, "f4"))


def jitted(mesh: mpmd.MpmdMesh, x: Any) -> Any:
    del mesh
    called: Any = jax.jit(zeros)
    return called(x)


Step = Callable[[mpmd.MpmdMesh, Any], Any]
REFUSED: dict[str, tuple[Step, type[Exception], str]] = {
    "an operation": (
        lambda mesh, x: mpmd.task(zeros, out_shardings=on(mesh, 0))(x + 1),
        PassError,
        r"error: a stablehlo\.\w+ outside of tasks\n  put it into a function, and call that as mpmd\.task\(function, ",
    ),
    "a constraint": (
        lambda mesh, x: jax.lax.with_sharding_constraint(mpmd.task(zeros, out_shardings=on(mesh, 0))(x), WHOLE),
        PassError,
        r"error: a sdy\.sharding_constraint outside of tasks",
    ),
    "a function": (jitted, PassError, r"error: a call of @zeros outside of tasks"),
    "no transfer": (
        lambda mesh, x: mpmd.task(zeros, out_shardings=on(mesh, 1))(x),
        PassError,
        r"error: task 'zeros' on mesh 1 takes a value of mesh 0, as array 0\n  transfer it first: mpmd\.transfer",
    ),
    "no mesh": (
        lambda mesh, x: mpmd.task(make, out_shardings=WHOLE, name="make")(),
        PassError,
        r"error: task 'make' takes no value that has a mesh\n  give it mesh=, or NamedShardings as out_shardings",
    ),
    "unknown axes": (
        lambda mesh, x: mpmd.task(zeros, out_shardings=on(mesh, 0, PartitionSpec(PartitionSpec.UNCONSTRAINED)))(x),
        ValueError,
        r"expected the axes of each dimension; sum partial sums inside of the task",
    ),
    "two meshes": (
        lambda mesh, x: mpmd.task(both, out_shardings=(on(mesh, 0), on(mesh, 1)), name="both")(x),
        ValueError,
        r"task 'both': its shardings are over meshes \[0, 1\], expected one",
    ),
    "another mesh than its argument": (
        lambda mesh, x: mpmd.task(zeros, mesh=mesh.unstack[1], out_shardings=WHOLE)(x),
        PassError,
        r"error: task 'zeros' on mesh 1 takes a value of mesh 0, as array 0\n  transfer it first: mpmd\.transfer",
    ),
    "another mesh than its result": (
        lambda mesh, x: mpmd.task(zeros, mesh=mesh.unstack[0], out_shardings=on(mesh, 1))(x),
        ValueError,
        r"task 'zeros': its shardings are over meshes \[0, 1\], expected one",
    ),
    "a group of meshes": (
        lambda mesh, x: mpmd.transfer(x, out_shardings=NamedSharding(mesh.mpmd_submesh([0, 1]).jax_mesh, WHOLE)),
        ValueError,
        r"a mesh of meshes 0, 1, expected one mesh of mpmd_mesh\.unstack",
    ),
    "the whole mesh": (
        lambda mesh, x: mpmd.task(zeros, out_shardings=NamedSharding(mesh.jax_mesh, WHOLE))(x),
        ValueError,
        r"a mesh of meshes 0, 1, expected one mesh of mpmd_mesh\.unstack",
    ),
    "other devices": (
        lambda mesh, x: mpmd.task(zeros, mesh=Mesh(np.array(jax.devices()[6:]), ("data",)), out_shardings=WHOLE)(x),
        ValueError,
        r"a mesh of other devices, expected one mesh of mpmd_mesh\.unstack",
    ),
    "no sharding": (
        lambda mesh, x: mpmd.task(zeros, out_shardings=None)(x),
        TypeError,
        r"task: found a sharding of type NoneType, expected a NamedSharding over one mesh of mpmd_mesh\.unstack",
    ),
    "the host": (
        lambda mesh, x: mpmd.task(zeros, out_shardings=on(mesh, 0).with_memory_kind("pinned_host"))(x),
        ValueError,
        r"task: a sharding with memory_kind='pinned_host': values of a step are on the devices, expected no",
    ),
    "no result": (
        lambda mesh, x: mpmd.task(nothing, out_shardings=WHOLE, name="none")(x),
        ValueError,
        r"task 'none' returns no array",
    ),
    "nothing to send": (
        lambda mesh, x: mpmd.transfer((), out_shardings=on(mesh, 1)),
        ValueError,
        r"transfer: expected an array at least",
    ),
    "stack": (
        lambda mesh, x: mpmd.stack(x, x),
        NotImplementedError,
        r"mpmd\.stack: it joins .*; transfer them to one mesh",
    ),
    "slice": (
        lambda mesh, x: mpmd.slice(x, [0, 1]),
        NotImplementedError,
        r"mpmd\.slice: it cuts .*; cut it in a task, and",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(what: str) -> None:
    fun, kind, message = REFUSED[what]
    with pytest.raises(kind, match=message):
        run(fun, np.zeros(4, "f4"))


def test_a_future_is_done_once() -> None:
    def step(mesh: mpmd.MpmdMesh, x: Any) -> Any:
        future = mpmd.transfer(x, out_shardings=on(mesh, 1, WHOLE))
        future.done()
        return future.done()

    with pytest.raises(RuntimeError, match=r"done\(\) was called before: keep the values that it returned"):
        run(step, np.zeros(4, "f4"))


def test_arguments_that_are_refused() -> None:
    mesh = mesh_of()
    with pytest.raises(
        TypeError, match=r"in_shardings: found a sharding of type \w+, expected a NamedSharding over one"
    ):
        run(argument, np.zeros(4, "f4"), shardings=SPEC)
    with pytest.raises(ValueError, match=r"a mesh of meshes 0, 1, expected one mesh of mpmd_mesh\.unstack"):
        run(argument, np.zeros(4, "f4"), shardings=NamedSharding(mesh.jax_mesh, WHOLE))
    with pytest.raises(TypeError, match=r"^the step takes arguments by position only, found x"):
        mpmd.mpmd(mesh, in_shardings=on(mesh, 0))(nothing)(x=np.zeros(4, "f4"))
