"""Weight gradients that a step leaves out, by a flag and without a compile."""

from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from unit.end_to_end.compare import assert_same, batch, loss, make_mesh, weights

import jaxpp.api as jaxpp
from jaxpp import schedules

ARGUMENTS = (weights(3), batch(4))


def gradients(params: Any, data: Any, schedule: Any = None) -> Any:
    one = partial(jax.value_and_grad(loss), params)
    return jaxpp.treduce(one, data, schedule=schedule, operation=(jaxpp.Concat(), jaxpp.Add))


def expected(left_out: dict[int, list[int]]) -> Any:
    """The losses of all microbatches, and sums of gradients over those that are not left out."""
    params, data = ARGUMENTS
    each = [jax.value_and_grad(loss)(params, {name: x[m] for name, x in data.items()}) for m in range(4)]
    sums = [
        sum((g[stage] for m, (_, g) in enumerate(each) if m not in left_out.get(stage, ())), np.zeros_like(params[0]))
        for stage in range(3)
    ]
    return np.stack([value for value, _ in each]), sums


def compiled(name: str = "zb-h1", **options: Any) -> Any:
    schedule = schedules.make(name, meshes=3, microbatches=4)
    step = partial(gradients, schedule=schedule)
    return jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=make_mesh(3), **options).lower(*ARGUMENTS).compile()


def test_sums_lack_what_is_left_out() -> None:
    """By share, by number, all, none; in one step and not in the next; traced too."""
    step = compiled()
    plain = step(*ARGUMENTS)
    choices: list[tuple[Any, dict[int, list[int]]]] = [
        ({0: 1.0}, {0: [0, 1, 2, 3]}),
        ({0: [1, 2], 2: [0]}, {0: [1, 2], 2: [0]}),
        ({1: 0.5, 2: 1}, {1: [1, 3], 2: [0, 1, 2, 3]}),
        ({0: 0.0, 1: []}, {}),
        ({np.int64(1): np.array([0]), 2: np.float32(0.25)}, {1: [0], 2: [3]}),
    ]
    for stages, left_out in choices:
        with jaxpp.frozen(stages):
            found, (traced, events) = step(*ARGUMENTS), step.trace(*ARGUMENTS)
        for each in (found, traced):
            for one, other in zip(jax.tree.leaves(each), jax.tree.leaves(expected(left_out)), strict=True):
                np.testing.assert_allclose(one, other, atol=1e-6)
        made = sorted((event.stage, event.microbatch) for event in events if event.kind == "weight_grad")
        assert made == [(k, m) for k in range(3) for m in range(4) if m not in left_out.get(k, ())]
        assert_same(step(*ARGUMENTS), plain, exact=True)


def test_several_devices_per_mesh_and_arrays_that_go_in_again() -> None:
    def train_step(params: Any, data: Any) -> Any:
        _, sums = gradients(params, data, schedules.make("zb-h1", meshes=3, microbatches=4))
        return [w - 0.1 * each for w, each in zip(params, sums, strict=True)]

    step = jaxpp.mpmd_jit_with_loop(train_step, mpmd_mesh=make_mesh(3, data=2), donate_argnums=0)
    params, data = [jax.numpy.array(w) for w in ARGUMENTS[0]], ARGUMENTS[1]
    for _ in range(2):
        before = [np.asarray(w) for w in params]
        with jaxpp.frozen({0: 1.0, 1: [0, 3]}):
            params = step(params, data)
        np.testing.assert_array_equal(params[0], before[0])
        assert np.abs(np.asarray(params[1]) - before[1]).max() > 0


def test_sums_that_are_no_gradients_stay_whole() -> None:
    """A scalar, of which each device has a part until the loop ends; a vector whose shape no weight has; a product."""

    def with_metrics(params: Any, data: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, data)
        return value, jax.numpy.stack([value, value**2, data["x"].sum()]), (data["x"] @ data["x"].T).max(), grads

    def step(params: Any, data: Any) -> Any:
        plan = schedules.make("zb-h1", meshes=3, microbatches=4)
        return jaxpp.treduce(partial(with_metrics, params), data, schedule=plan, operation=jaxpp.Add)

    params, data = ARGUMENTS
    spec = jax.P(None, "data")
    pipelined = jaxpp.mpmd_jit_with_loop(step, make_mesh(3, data=2), in_shardings=(jax.P(), spec))
    *metrics, _ = jax.jit(step)(params, data)
    with jaxpp.frozen(dict.fromkeys(range(3), 1.0)):
        found = pipelined(params, data)
    for one, other in zip(found, metrics, strict=False):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    assert not any(np.any(np.asarray(sum_)) for sum_ in found[-1])


@pytest.mark.parametrize(
    ("stages", "error", "message"),
    [
        ([0], TypeError, r"frozen: expected for each stage a share from 0 to 1, .* found \[0\]"),
        ({0: "all"}, TypeError, "found 0: 'all'"),
        ({0: 2}, ValueError, "found 0: 2"),
        ({0: True}, TypeError, "found 0: True"),
        ({0: [0.5]}, TypeError, r"found 0: \[0.5\]"),
    ],
)
def test_what_is_no_choice(stages: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message), jaxpp.frozen(stages):
        raise AssertionError("it was taken")


def test_what_a_program_does_not_have() -> None:
    whole, halved = compiled("1f1b"), compiled()
    for step, stages, message in (
        (whole, {0: 1.0}, "stage 0 for microbatch 0 is no task of its own, .* zb-h1"),
        (halved, {3: 1.0}, "frozen: the program has no backward of stage 3"),
        (halved, {0: [4]}, "frozen: there is no backward of stage 0 for microbatch 4"),
    ):
        with pytest.raises(ValueError, match=message), jaxpp.frozen(stages):
            step(*ARGUMENTS)
