"""What a user may get wrong, and the whole text of the answer; the process survives."""

# pyright: reportUnknownLambdaType=false

import inspect
import re
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P
from unit.end_to_end.compare import assert_same, batch, check, layers, loss, make_mesh, sgd_step, weights

import jaxpp.api as jaxpp
from jaxpp.schedules import Placement, Schedule, Task

SCHEDULE = jaxpp.Std1F1B(3)


def message(step: Callable[..., Any], *args: Any, error: type[Exception] = jaxpp.PassError, **options: Any) -> str:
    """What the pipelined `step` raises; three stages of one device unless there is a `mesh`."""
    mesh = options.pop("mesh", None) or make_mesh(3)
    with pytest.raises(error) as caught:
        jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=mesh, **options)(*(args or (weights(3), batch(4))))
    text = str(caught.value)
    assert len(text) < 400
    return text


def at(text: str, where: Callable[..., Any], code: str) -> str:
    """`text` without the position, which must be that of the line of `where` that contains `code`."""
    lines, first = inspect.getsourcelines(where)
    number = next(first + k for k, line in enumerate(lines) if code in line)
    position, found, rest = text.partition(": error: ")
    assert found, text
    assert position.rpartition(":")[0] == f"{inspect.getsourcefile(where)}:{number}", text
    return rest


def with_loss(of_one: Callable[..., Any]) -> Callable[..., Any]:
    return partial(sgd_step, schedule=SCHEDULE, loss=of_one)


@pytest.mark.parametrize("marks", [0, 1, 4])
def test_wrong_number_of_marks(marks: int) -> None:
    text = message(partial(sgd_step, schedule=SCHEDULE, marks=marks), weights(4), batch(4))
    assert at(text, sgd_step, "jaxpp.treduce(") == (
        f"found {marks} stage mark{'s' * (marks != 1)}, the schedule 1f1b has 3 stages\n"
        + "  if each mark ends a layer: cuts=[2, 1, 1] (jaxpp-opt: --cuts 2,1,1); or " * (marks == 4)
        + "  " * (marks != 4)
        + "mark the end of every stage (mark_stage_end): 3 marks, or 2 without the last one"
        + "; or take a schedule of 4 stages" * (marks == 4)
    )


INNER = "marks must stand directly in the function that treduce maps over the microbatches"


def test_mark_inside_a_loop_of_unknown_length() -> None:
    def of_one(params: Any, microbatch: Any) -> Any:
        def layer(carry: Any) -> Any:
            x, _ = carry
            x = jaxpp.mark_stage_end(jnp.tanh(x @ params[0]))
            return x, jnp.sum(x**2)

        return jnp.sum(lax.while_loop(lambda carry: carry[1] > 1, layer, (microbatch["x"], 2.0))[0])

    def step(params: Any, batch: Any) -> Any:
        return jaxpp.treduce(partial(of_one, params), batch, schedule=SCHEDULE)

    assert at(message(step), of_one, "lax.while_loop") == (
        "a stage mark inside a loop that runs an unknown number of times\n  loop over the layers with lax.scan, or "
        "fori_loop with constant bounds: their marks are the stages"
    )


def test_mark_inside_a_conditional() -> None:
    def of_one(params: Any, microbatch: Any) -> Any:
        def layer(x: Any, w: Any) -> Any:
            return jaxpp.mark_stage_end(jnp.tanh(x @ w))

        x = microbatch["x"]
        for w in params:
            x = lax.cond(x[0, 0] > 0, layer, lambda x, _: x, x, w)
        return jnp.sum(x)

    text = message(with_loss(of_one))
    assert at(text, of_one, "mark_stage_end") == f"a stage mark inside a conditional\n  {INNER}"


def test_mark_inside_a_shard_map_of_a_conditional() -> None:
    mesh = make_mesh(3, data=2)
    sharded = jax.shard_map(layers, mesh=mesh.jax_mesh, in_specs=(P(), P("data")), out_specs=P("data"))

    def of_one(params: Any, microbatch: Any) -> Any:
        x = microbatch["x"]
        return jnp.sum(lax.cond(x[0, 0] > 0, sharded, lambda _, x: x, params, x))

    text = message(with_loss(of_one), mesh=mesh)
    assert at(text, layers, "mark_stage_end") == f"a stage mark inside a conditional\n  {INNER}"


WRAP = "wrap the gradient of one microbatch in jaxpp.treduce, or write the loop with lax.scan"


def test_no_treduce() -> None:
    def step(params: Any, batch: Any) -> Any:
        return jax.value_and_grad(loss)(params, jax.tree.map(lambda leaf: leaf[0], batch))

    text = message(step)
    assert at(text, layers, "mark_stage_end") == (
        f"no microbatch loop: the stage marks stand outside of any loop\n  {WRAP}; "
        "jaxpp.mpmd_jit_by_yield compiles a function without microbatches"
    )
    assert message(step, schedule="1f1b") == text


def test_neither_loop_nor_mark() -> None:
    assert message(lambda params, _: params, schedule=SCHEDULE) == (
        f"error: no microbatch loop, and no stage mark\n  {WRAP}, and mark the end of each stage in it "
        "(jaxpp.mark_stage_end)"
    )


def test_a_loop_without_marks() -> None:
    def step(params: Any, batch: Any) -> Any:
        def one(total: Any, microbatch: Any) -> Any:
            return total + loss(params, microbatch, marks=0), None

        return lax.scan(one, 0.0, batch)[0]

    assert at(message(step, schedule="1f1b"), step, "lax.scan") == (
        "no microbatch loop: there is no stage mark in any loop\n  "
        "mark the end of each stage (jaxpp.mark_stage_end) in what the loop over microbatches computes; in a module: "
        "stablehlo.optimization_barrier {jaxpp.boundary = "
        '{stage = 0 : i64, phase = "forward" | "backward", name = "..."}}'
    )


def test_a_loop_over_layers_alone() -> None:
    def step(params: Any, batch: Any) -> Any:
        def layer(x: jax.Array, w: jax.Array) -> Any:
            return jaxpp.mark_stage_end(jnp.tanh(x @ w)), None

        return lax.scan(layer, batch["x"][0], jnp.stack(params))[0]

    assert at(message(step, schedule="1f1b"), step, "lax.scan") == (
        "found 1 stage mark, the schedule 1f1b has 3 stages\n  "
        "if this loop is not over microbatches: wrap the gradient of one microbatch in jaxpp.treduce, or compile a "
        "function without microbatches by jaxpp.mpmd_jit_by_yield; if it is, "
        "mark the end of every stage (mark_stage_end): 3 marks, or 2 without the last one"
    )


MARKS = "mark the end of every stage (mark_stage_end): {} marks, or {} without the last one"
FOUR = "take a schedule of 4 stages, such as"
CUTS = "if each mark ends a layer: cuts=[2, 2] (jaxpp-opt: --cuts 2,2)"


@pytest.mark.parametrize(
    ("meshes", "ways"),
    [
        (2, [CUTS, MARKS.format(2, 1), f"{FOUR} gpipe{{chunks=2}} on 2 meshes"]),
        (3, [CUTS, MARKS.format(2, 1), f"{FOUR} gpipe{{chunks=2}} on 2 meshes"]),
        (4, [f"{FOUR} gpipe on 4 meshes", CUTS, MARKS.format(2, 1)]),
    ],
)
def test_more_marks_than_stages(meshes: int, ways: list[str]) -> None:
    """The example fits the meshes that there are, or else those of the schedule."""
    text = message(partial(sgd_step, schedule=jaxpp.GPipe(2)), weights(4), batch(4), mesh=make_mesh(meshes))
    assert at(text, sgd_step, "jaxpp.treduce(") == (
        f"found 4 stage marks, the schedule gpipe has 2 stages\n  {'; or '.join(ways)}"
    )


@pytest.mark.parametrize(
    ("schedule", "ways"),
    [
        (jaxpp.Interleaved1F1B(8, 4), [MARKS.format(8, 7), f"{FOUR} 1f1b on 4 meshes"]),
        (jaxpp.Std1F1B(8), [f"{FOUR} 1f1b on 4 meshes", MARKS.format(8, 7)]),
    ],
)
def test_fewer_marks_than_stages_and_as_many_as_meshes(schedule: Any, ways: list[str]) -> None:
    text = message(partial(sgd_step, schedule=schedule), weights(4), batch(4), mesh=make_mesh(4))
    assert text.endswith(f" has 8 stages\n  {'; or '.join(ways)}")


@pytest.mark.parametrize("file", ["/tmp/ipykernel_12/3456.py", "<ipython-input-3-a1b2>", "<stdin>", "<string>"])
def test_code_that_is_in_no_file(file: str) -> None:
    """Cells of notebooks, and what is typed, have lines too."""
    names: dict[str, Any] = {"__name__": "__main__", "mark": jaxpp.mark_stage_end, "treduce": jaxpp.treduce}
    exec(compile("def step(w, b):\n    x = b['x'][0]\n    return mark(x @ w[0])\n", file, "exec"), names)
    assert message(names["step"]).startswith(f"{file}:3:11: error: no microbatch loop")
    exec(compile("def step(w, b):\n    return treduce(lambda mb: 'x', b)\n", file, "exec"), names)
    with pytest.raises(TypeError, match=f"^{re.escape(file)}:2: treduce: result is of type str"):
        names["step"](weights(3), batch(4))


ONE = (
    "found 2 microbatch loops, expected one\n"
    "  one treduce (or one loop with stage marks) per step: put both losses into one, or make a step of each, and call "
    "one after the other (docs/recipes.md, 'Two passes')"
)


def test_two_treduces() -> None:
    def step(params: Any, batch: Any) -> Any:
        return sgd_step(sgd_step(params, batch, schedule=SCHEDULE)[0], batch, schedule=SCHEDULE)

    assert at(message(step), sgd_step, "jaxpp.treduce(") == ONE


def test_two_scans() -> None:
    def step(params: Any, batch: Any) -> Any:
        total, _ = lax.scan(lambda total, one: (total + loss(params, one), None), 0.0, batch)
        return lax.scan(lambda total, one: (total + loss(params, one), None), total + 1, batch)

    assert at(message(step, schedule="1f1b"), step, "total + 1") == ONE


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"y": batch(5)["y"]}, "batch['y'] has 5 microbatches along axis 0, but batch['x'] has 4"),
        ({"z": {"k": np.ones(3)}}, "batch['z']['k'] has 3 microbatches along axis 0, but batch['x'] has 4"),
        ({"z": 1.0}, "batch['z'] has shape (), so no microbatch axis 0"),
    ],
)
def test_leaves_of_the_batch_differ(wrong: Any, text: str) -> None:
    step = partial(sgd_step, schedule=SCHEDULE)
    found = message(step, weights(3), batch(4) | wrong, error=ValueError)
    assert re.fullmatch(rf".*compare\.py:\d+: treduce: {re.escape(text)}", found), "at the line of the user's treduce"


def test_more_meshes_than_the_mesh_has() -> None:
    text = message(partial(sgd_step, schedule=jaxpp.GPipe(4)), weights(4), batch(4), mesh=make_mesh(2))
    assert at(text, sgd_step, "jaxpp.treduce(") == (
        "the schedule runs on 4 meshes, the mesh axis 'mpmd' has 2\n"
        "  give a larger mesh, or a schedule that places several stages on one mesh"
    )


def test_axes_that_the_mesh_lacks() -> None:
    with pytest.raises(ValueError, match=r"^MpmdMesh: the mesh has no axis 'pipe'; its axes are 'mpmd' \(3\), 'data' "):
        jaxpp.MpmdMesh(make_mesh(3).jax_mesh, "pipe")
    step = partial(sgd_step, schedule=SCHEDULE)
    axes = "names the axis 'tensor'; the mesh has ('mpmd', 'data', 'model')"
    text = message(step, error=ValueError, in_shardings=([P("tensor"), None, None], None))
    assert text == f"in_shardings for params[0]: P('tensor',) {axes}"
    assert message(step, error=ValueError, out_shardings=P("tensor")) == f"out_shardings: P('tensor',) {axes}"


def test_sharding_over_the_mpmd_axis() -> None:
    step = partial(sgd_step, schedule=SCHEDULE)
    text = message(step, error=ValueError, in_shardings=(P("mpmd"), None))
    assert text == (
        "in_shardings for params[0]: P('mpmd',) shards over the mpmd axis 'mpmd'; a value lives on whole submeshes, "
        "unless it is a stack of layers that the loop reads one by one, as many for each mesh: "
        "shard it over ('data', 'model')"
    )
    mesh = make_mesh(2)
    summed = jax.shard_map(lambda w: lax.psum(w, "mpmd"), mesh=mesh.jax_mesh, in_specs=P(), out_specs=P())
    text = message(lambda p, b: sgd_step([summed(w) for w in p], b, schedule=SCHEDULE), mesh=mesh, error=ValueError)
    assert text.endswith(
        "all_reduce runs over the mpmd axis 'mpmd'; the submeshes run different programs: "
        "leave that axis to the stage marks"
    )
    assert "test_bad_input.py:" in text


def test_shardings_that_do_not_fit() -> None:
    step = partial(sgd_step, schedule=SCHEDULE)
    mesh = make_mesh(3, data=2)
    text = message(step, weights(3), batch(3), error=ValueError, mesh=mesh, in_shardings=(None, P("data")))
    assert text == "in_shardings for batch['x']: P('data',) cuts a dimension of 3 into 2; shape (3, 4, 8)"
    text = message(step, error=ValueError, in_shardings=(None,))
    assert text == "in_shardings: 1 entry for 2 positional arguments that are not static"
    text = message(step, error=TypeError, in_shardings=("data", None))
    assert text == "in_shardings for params[0]: str; expected a NamedSharding, a PartitionSpec or None"


STATIC = "of type str ('gpt'), not an array; if batch is a Python value, name it in static_argnums or static_argnames"
LETTERS = "a numpy array of <U1, which JAX does not have: convert it to a dtype of jax.numpy"


@pytest.mark.parametrize(("value", "found"), [("gpt", STATIC), (np.array(["a"]), LETTERS)])
def test_argument_that_is_no_array(value: Any, found: str) -> None:
    text = message(partial(sgd_step, schedule=SCHEDULE), weights(3), {**batch(4), "name": value}, error=TypeError)
    assert text == f"argument batch['name'] is {found}"


OPTIONS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "gather_weights": (
        {"options": jaxpp.StepOptions(gather_weights="nonsense")},
        ValueError,
        "gather_weights is 'nonsense', expected one of microbatch, chunk, ahead, step",
    ),
    "scatter_gradients": (
        {"options": jaxpp.StepOptions(scatter_gradients="ahead")},
        ValueError,
        "scatter_gradients is 'ahead', expected one of microbatch, chunk, step",
    ),
    "share_tasks": (
        {"options": jaxpp.StepOptions(share_tasks=cast(Any, ["always"]))},
        ValueError,
        "share_tasks is ['always'], expected auto, never, always, or a number of FLOPs such as 1e7",
    ),
    "cuts": ({"cuts": b"22"}, TypeError, "cuts: expected the layers of each stage, such as [5, 5, 4, 2], found b'22'"),
    "static_argnums": (
        {"static_argnums": "x"},
        TypeError,
        "static_argnums is 'x', expected the position of an argument, or a tuple of them",
    ),
    "donate_argnames": (
        {"donate_argnames": [0]},
        TypeError,
        "donate_argnames is [0], expected the name of an argument, or a tuple of them",
    ),
    "a schedule beside that of the loop": (
        {"schedule": "zero-bubble"},
        jaxpp.ScheduleError,
        "no schedule is named 'zero-bubble'; did you mean 'zb-h1'? There are gpipe, ",
    ),
    "a schedule that is none": (
        {"schedule": 3},
        TypeError,
        "schedule: expected an object such as jaxpp.schedules.Std1F1B(4), a name, a file or a text, found int",
    ),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_that_there_are_not(name: str) -> None:
    """They are refused where they are given, before the step is called."""
    options, error, text = OPTIONS[name]
    with pytest.raises(error) as caught:
        jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule=SCHEDULE), mpmd_mesh=make_mesh(2), **options)
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize("shardings", [[], {}, ()])
def test_shardings_of_no_result(shardings: Any) -> None:
    text = message(partial(sgd_step, schedule=SCHEDULE), error=ValueError, out_shardings=shardings)
    assert text.startswith("out_shardings do not fit what the function returns, (([*, *, *], *)); give")


def test_donated_arrays_used_again() -> None:
    step = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule=SCHEDULE), mpmd_mesh=make_mesh(3), donate_argnums=0)
    params = weights(3)
    new, _ = step(params, batch(4))
    with pytest.raises(RuntimeError) as caught:
        step(params, batch(4))
    assert str(caught.value) == (
        "argument `params[0]` was donated to an earlier call: its array is deleted; use what that call returned in its "
        "place"
    )
    with pytest.raises(
        ValueError,
        match=r"^arguments `params\[0\]` and `params\[1\]` are one array, which is donated: .*make one of them a copy",
    ):
        step([new[0]] * 3, batch(4))
    assert_same(step(new, batch(4)), jax.jit(sgd_step)(jax.jit(sgd_step)(weights(3), batch(4))[0], batch(4)))


FIXED = "loop over a fixed number of microbatches: treduce, lax.scan, or fori_loop with constant bounds"


def test_loop_without_a_constant_trip_count() -> None:
    def of_one(params: Any, batch: Any, i: Any) -> Any:
        return loss(params, jax.tree.map(lambda leaf: leaf[i], batch))

    def converging(params: Any, batch: Any) -> Any:
        def body(carry: Any) -> Any:
            return carry[0] + 1, of_one(params, batch, carry[0])

        return lax.while_loop(lambda carry: carry[1] > 1e-3, body, (0, 1.0))

    def counted(params: Any, batch: Any, n: Any) -> Any:
        return lax.fori_loop(0, n, lambda i, total: total + of_one(params, batch, i), 0.0)

    expected = f"the microbatch loop has no constant trip count\n  {FIXED}"
    assert at(message(converging, schedule="1f1b"), converging, "lax.while_loop") == expected
    text = message(counted, weights(3), batch(4), 4, schedule="1f1b")
    assert at(text, counted, "lax.fori_loop") == expected


def test_no_schedule_and_a_wrong_one() -> None:
    text = message(sgd_step)
    assert at(text, sgd_step, "jaxpp.treduce(").startswith("the microbatch loop has no schedule\n  give one: ")
    text = message(partial(sgd_step, schedule=SCHEDULE.build(5)))
    assert at(text, sgd_step, "jaxpp.treduce(") == "the loop runs 4 microbatches, its schedule has 5"


def test_a_schedule_whose_order_cannot_run() -> None:
    """The message shows the row of the grid, and marks the cell."""
    rows = [[Task(kind, stage, k) for kind in ("forward", "backward") for k in range(4)] for stage in range(3)]
    rows[2] = rows[2][4:] + rows[2][:4]
    text = message(partial(sgd_step, schedule=Schedule.of("mine", Placement.linear(3), rows)))
    assert at(text, sgd_step, "jaxpp.treduce(") == (
        "mesh 2 position 0: B(stage 2, mb 0) needs F(stage 2, mb 0), which comes later on mesh 2\n"
        "  mesh 2: 2B0 2B1 2B2 2B3 2F0 2F1 2F2 2F3\n"
        "          ^^^"
    )


def test_the_traceback_of_an_error_in_the_model_is_the_users() -> None:
    def of_one(params: Any, microbatch: Any) -> Any:
        raise RuntimeError("in the model")

    with pytest.raises(RuntimeError, match="in the model") as caught:
        jaxpp.mpmd_jit_with_loop(with_loss(of_one), mpmd_mesh=make_mesh(3))(weights(3), batch(4))
    files = [Path(frame.filename).name for frame in traceback.extract_tb(caught.value.__traceback__)]
    mine = files.index(Path(__file__).name, 1)  # where tracing enters the step
    assert set(files[mine:]) == {Path(__file__).name}


def test_a_step_inside_a_transformation() -> None:
    step = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule=SCHEDULE), mpmd_mesh=make_mesh(3))
    stacked = [jnp.stack([w, w]) for w in weights(3)]

    def closing_over() -> Any:
        return step(weights(3), batch(4))

    def check_refused() -> None:
        for transformed, *arguments in (
            (jax.grad(lambda params: step(params, batch(4))[1].sum()), weights(3)),
            (jax.jit(step), weights(3), batch(4)),
            (jax.vmap(step, (0, None)), stacked, batch(4)),
            (jax.jit(closing_over),),
            (jax.jit(lambda params: step.lower(params, batch(4)) and params), weights(3)),
        ):
            with pytest.raises(TypeError) as caught:
                transformed(*arguments)
            assert str(caught.value) == (
                "a step of mpmd_jit_with_loop was called inside jax.jit, jax.grad, jax.vmap or another transformation; "
                "it runs programs on several meshes, and must be called from outside"
            )

    check_refused()
    step(weights(3), batch(4))
    check_refused()  # also where the step is compiled for such arguments


def test_the_loop_inside_a_conditional() -> None:
    def step(params: Any, batch: Any) -> Any:
        def run() -> Any:
            return sgd_step(params, batch, schedule=SCHEDULE)

        return lax.cond(batch["x"][0, 0, 0] > 0, run, lambda: (params, jnp.zeros(4)))

    def several_steps(params: Any, batch: Any) -> Any:
        return lax.scan(lambda params, _: sgd_step(params, batch, schedule=SCHEDULE), params, None, 2)

    def nested(params: Any, batch: Any) -> Any:
        def inner(one: Any) -> Any:
            return sgd_step(params, {"x": one, "y": one}, schedule=SCHEDULE)

        return jaxpp.treduce(inner, batch["x"], operation=jaxpp.Add)

    for each in (step, several_steps, nested):
        assert at(message(each), sgd_step, "jaxpp.treduce(") == (
            "the microbatch loop stands inside another loop or conditional\n"
            "  call treduce at the top level of the training step; a train_loop is given to mpmd_jit_with_loop itself"
        )


def test_a_reduction_that_has_an_order_on_two_meshes() -> None:
    class Latest(jaxpp.Op):
        """Mostly the last microbatch."""

        def state(self, n: int, a: jax.ShapeDtypeStruct) -> jax.Array:
            return jnp.zeros(a.shape, a.dtype)

        def update(self, state: jax.Array, update: jax.Array, index: jax.Array) -> jax.Array:
            return 0.9 * state + 0.1 * update

    def step(params: Any, batch: Any) -> Any:
        one = partial(jax.value_and_grad(loss), params)
        return jaxpp.treduce(one, batch, schedule="chimera", operation=(Latest, jaxpp.Add))

    text = message(step, weights(2), batch(4), mesh=make_mesh(2))
    assert at(text, step, "jaxpp.treduce(") == (
        "the backward of stage 1 for microbatch 1 needs a value of the backward of stage 1 for microbatch 0, which the "
        "schedule runs later\n  a stage must run the microbatches in ascending order, since one hands a value on to "
        "the next; only sums (Add), maxima (Max) and stacks (Concat) may be taken in any order"
    )


def test_value_handed_to_an_earlier_stage_of_the_next_microbatch() -> None:
    def step(params: Any, batch: Any) -> Any:
        def one(carry: Any, microbatch: Any) -> Any:
            return layers(params, microbatch["x"] + carry), None

        return lax.scan(one, jnp.zeros((4, 8)), batch)[0]

    assert at(message(step, schedule="1f1b"), step, "lax.scan") == (
        "the forward of stage 0 for microbatch 1 needs a value of the forward of stage 2 for microbatch 0, "
        "which the schedule runs later\n  what one microbatch hands on to the next must be made and used by one stage"
    )


def test_the_process_goes_on_after_errors() -> None:
    message(partial(sgd_step, schedule=SCHEDULE, marks=0))
    check(partial(sgd_step, schedule=SCHEDULE), (weights(3), batch(2)), make_mesh(3))


@pytest.mark.parametrize(
    ("options", "error", "expected"),
    [
        (
            "xla_cpu_enable_fast_math",
            TypeError,
            "^compiler_options: expected names of XLA's options and their values, ",
        ),
        (
            {"xla_cpu_enable_fast_math": None},
            TypeError,
            "^compiler_options: xla_cpu_enable_fast_math is None, expected a bool, int, float or str of Python; "
            "leave it out for XLA's default$",
        ),
        ({3: {}}, ValueError, "^compiler_options: there is no mesh 3, the meshes are 0 to 2$"),
        (
            {1: {"xla_cpu_enable_fast_math": []}},
            TypeError,
            r"^compiler_options of mesh 1: xla_cpu_enable_fast_math is \[\], expected a bool, int, float or str of",
        ),
        (
            {"xla_cpu_enable_fast_math": np.True_},
            TypeError,
            "^compiler_options: xla_cpu_enable_fast_math is .*True_?, expected a bool, int, float or str of Python; ",
        ),
        (
            {np.int64(1): {}},
            TypeError,
            "^compiler_options: expected the name of an option, or the number of a mesh as an int, found np.int64",
        ),
        (
            {"1": {"xla_cpu_enable_fast_math": True}},
            TypeError,
            "^compiler_options: options of one mesh go by its number as an int, found '1'$",
        ),
        ({1: "fast"}, TypeError, "^compiler_options of mesh 1: expected names of options and values, found 'fast'$"),
        (
            {"xla_cpu_parallel_codegen_split_count": -5},
            ValueError,
            "^compiler_options: xla_cpu_parallel_codegen_split_count is -5, expected 1 to 65,536: XLA does not check",
        ),
        (
            {1: {"xla_reduce_window_rewrite_base_length": "-1"}},
            ValueError,
            "^compiler_options of mesh 1: xla_reduce_window_rewrite_base_length is '-1', expected at least 0: XLA does",
        ),
        (
            {"xla_disable_all_hlo_passes": True},
            ValueError,
            "^compiler_options: XLA ends the process with xla_disable_all_hlo_passes=True: leave it out$",
        ),
        (
            {"xla_disable_hlo_passes": "sharding-removal,spmd-partitioning"},
            ValueError,
            "XLA ends the process with xla_disable_hlo_passes='sharding-removal,spmd-partitioning': leave it out$",
        ),
        (
            {"xla_cpu_parallel_codegen_split_count": "many"},
            jax.errors.JaxRuntimeError,
            "'many' is not a valid int32 value",
        ),
        ({2: {"xla_no_such": True}}, jax.errors.JaxRuntimeError, "No such compile option: 'xla_no_such'$"),
    ],
)
def test_options_of_xla(options: Any, error: type[Exception], expected: str) -> None:
    """Values that XLA's bindings don't take are refused at once; what XLA does not know, when it compiles."""
    step = partial(sgd_step, schedule=SCHEDULE)
    assert re.search(expected, message(step, error=error, compiler_options=options))
