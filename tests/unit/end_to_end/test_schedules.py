"""Schedules, placements, numbers of stages, microbatches and marks: always the results of plain `jax.jit`."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from unit.end_to_end import transformer
from unit.end_to_end.compare import assert_same, batch, check, feed_state, layers, make_mesh, sgd_step, weights
from unit.end_to_end.decoder import SLICES

import jaxpp.api as jaxpp
from jaxpp import schedules
from jaxpp.schedules import classes
from jaxpp.schedules.classes import ScheduleTasks
from jaxpp.schedules.library.classic import gpipe, one_f_one_b

# (name, meshes, options): four stages in most.
LIBRARY: list[tuple[str, int, dict[str, Any]]] = [
    ("gpipe", 4, {}),
    ("1f1b", 4, {}),
    ("1f1b", 2, {"chunks": 2}),
    ("eager-1f1b", 4, {}),
    ("interleaved-1f1b", 2, {}),
    ("interleaved-1f1b", 2, {"chunks": 3}),
    ("kimi-k2", 2, {}),
    ("looped-bfs", 2, {}),
    ("hanayo", 2, {}),
    ("hanayo", 1, {"chunks": 4}),
    ("chimera", 4, {}),
    ("chimera", 4, {"doubling": True}),
    ("bitpipe", 2, {}),
    ("zb-h1", 4, {}),
    ("zb-h2", 4, {}),
    ("zb-1p", 4, {}),
    ("zb-2p", 4, {}),
    ("interleaved-zb", 2, {}),
    ("zb-v", 2, {}),
    ("stp", 2, {}),
    ("v-half", 2, {}),
    ("v-min", 2, {}),
    ("gis", 2, {}),
    ("po-h", 2, {}),
    ("po-f", 2, {}),
    ("bpipe", 4, {"microbatches": 6}),
    ("dualpipe", 2, {"fused": False}),
    ("dualpipe", 4, {"microbatches": 8}),
    ("dualpipe-v", 2, {}),
    ("dualpipe-v", 2, {"fused": True}),
]


@pytest.mark.parametrize(("name", "meshes", "options"), LIBRARY)
def test_library(name: str, meshes: int, options: dict[str, Any]) -> None:
    schedule = schedules.make(name, meshes=meshes, **{"microbatches": 4, **options})
    step = partial(transformer.train_step, schedule=schedule)
    arguments = (transformer.state(schedule.stages), transformer.batch(schedule.microbatches))
    check(step, arguments, make_mesh(meshes), steps=2, feed=feed_state, reference=transformer.PLAIN)


def test_a_schedule_is_given_in_the_same_ways_everywhere(tmp_path: Path) -> None:
    """By name with options, in a file, as text, as an object; to `treduce` and to the compiled function."""
    schedule = schedules.make("kimi-k2", meshes=2, microbatches=3, chunks=1)
    (tmp_path / "mine").write_text(str(schedule))
    programs: set[str] = set()
    for given in ("kimi-k2{chunks=1}", str(tmp_path / "mine"), tmp_path / "mine", str(schedule), jaxpp.KimiK2(2, 2)):
        for inside in (True, False):
            step = partial(sgd_step, schedule=given if inside else None)
            outside = None if inside else given
            lowered = jaxpp.mpmd_jit_with_loop(step, make_mesh(2), schedule=outside).lower(weights(2), batch(3))
            programs.add(lowered.program().as_text())
    assert len(programs) == 1


@pytest.mark.parametrize("own", [None, "gpipe"])
def test_another_schedule_without_another_trace(own: str | None) -> None:
    """It takes the place of the step's own; what was lowered stays as it is."""
    traced: list[int] = []

    def step(params: Any, data: Any, schedule: Any = own) -> Any:
        traced.append(len(traced))
        return sgd_step(params, data, schedule=schedule)

    lowered = jaxpp.mpmd_jit_with_loop(step, make_mesh(2), schedule="gpipe").lower(weights(2), batch(3))
    before = lowered.program().as_text()
    for schedule in ("zb-h1", jaxpp.Std1F1B(2), schedules.make("1f1b", meshes=2, microbatches=3, chunks=1)):
        count = len(traced)
        other = lowered.with_schedule(schedule)
        found = other.compile()(weights(2), batch(3))
        assert len(traced) == count
        assert_same(found, jax.jit(step)(weights(2), batch(3)))
        plain = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule=schedule), make_mesh(2))
        assert other.program().as_text() == plain.lower(weights(2), batch(3)).program().as_text().replace(
            "@jit_sgd_step", "@jit_step"
        )
    assert lowered.program().as_text() == before


def test_another_schedule_that_does_not_fit() -> None:
    lowered = jaxpp.mpmd_jit_with_loop(sgd_step, make_mesh(2), schedule="gpipe").lower(weights(2), batch(3))
    for schedule, text in (
        ("dualpipe", "dualpipe: microbatches must be a multiple of 2, found 3"),
        (jaxpp.Std1F1B(4), "found 2 stage marks, the schedule 1f1b has 4 stages"),
    ):
        with pytest.raises(jaxpp.PassError, match=rf"compare\.py:\d+:.* {re.escape(text)}"):
            lowered.with_schedule(schedule).program()
    with pytest.raises(ValueError, match=r'^with_schedule: "auto" tries several; lower the step with schedule="auto"'):
        lowered.with_schedule("auto")


def test_a_schedule_that_is_none() -> None:
    for given, error, text in (
        ("none.txt", schedules.ScheduleError, "none.txt: cannot read: No such file or directory"),
        ("1f2b", schedules.ScheduleError, "no schedule is named '1f2b'; did you mean '1f1b'? There are gpipe, "),
        ("gis{group=x}", jaxpp.PassError, "group must be a whole number, found 'x'"),
        (
            3,
            TypeError,
            "schedule: expected an object such as jaxpp.schedules.Std1F1B(4), a name, a file or a text, found int",
        ),
        (jaxpp.KimiK2, TypeError, "schedule=KimiK2 is a class; give an instance: schedule=KimiK2(number of stages)"),
    ):
        step = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule=given), make_mesh(2))
        with pytest.raises(error, match=rf"compare\.py:\d+:.* {re.escape(text)}"):
            step(weights(2), batch(2))


def test_every_schedule_is_tested() -> None:
    made = [schedules.make(name, meshes=2, microbatches=4) for name in schedules.names()]
    # For models and loops of other kinds, which have tests of their own.
    others = {*SLICES, "slimpipe", "vocab-1f1b", "vocab-v-half", "pipedream-2bw"}
    assert {name for name, _, _ in LIBRARY} == {schedule.name for schedule in made} - others


def test_all_classes_are_public_names() -> None:
    found = [each for each in vars(classes).values() if isinstance(each, type) and getattr(each, "published", "")]
    assert len(found) == 9
    assert all(vars(jaxpp)[each.__name__] is getattr(schedules, each.__name__) is each for each in found)


@pytest.mark.parametrize("schedule", [jaxpp.GPipe, jaxpp.Std1F1B])
@pytest.mark.parametrize(("stages", "microbatches"), [(4, 5), (4, 2), (3, 1), (1, 3), (1, 1)])
def test_schedules(schedule: type[jaxpp.BaseSchedule], stages: int, microbatches: int) -> None:
    step = partial(sgd_step, schedule=schedule(stages))
    check(step, (weights(stages), batch(microbatches)), make_mesh(stages), steps=2, feed=feed_state)


@pytest.mark.parametrize("stages", [1, 3])
def test_one_mark_fewer_than_stages(stages: int) -> None:
    step = partial(sgd_step, schedule=jaxpp.Std1F1B(stages), marks=stages - 1)
    check(step, (weights(stages), batch(3)), make_mesh(stages))


def test_enter_stage_stands_between_stages() -> None:
    def loss(params: Any, microbatch: Any) -> Any:
        x = microbatch["x"]
        for stage, w in enumerate(params):
            if stage:
                x = jaxpp.pipeline_enter_stage(x)
            x = jnp.tanh(x @ w)
        return jnp.mean((x - microbatch["y"]) ** 2)

    check(partial(sgd_step, schedule=jaxpp.GPipe(3), loss=loss), (weights(3), batch(3)), make_mesh(3))


def test_meshes_left_idle() -> None:
    with pytest.warns(UserWarning, match=r"^the schedule runs on 2 of the 4 meshes of axis 'mpmd': 2 stay idle$"):
        found, _ = check(partial(sgd_step, schedule=jaxpp.Std1F1B(2)), (weights(2), batch(3)), make_mesh(4))
    assert [w.devices() for w in found] == [{device} for device in jax.devices()[:2]]


@pytest.mark.parametrize(
    ("make", "placement"),
    [
        (one_f_one_b, (0, 1, 0, 1)),
        (one_f_one_b, (0, 1, 1, 0)),
        (one_f_one_b, (0, 0, 1, 1)),
        (gpipe, (0, 0, 0, 0)),
        (one_f_one_b, (3, 2, 1, 0)),
    ],
)
def test_stages_are_placed_as_the_schedule_says(make: Any, placement: tuple[int, ...]) -> None:
    placed = schedules.Placement.of(*placement)
    step = partial(sgd_step, schedule=make(placed.meshes, 3, placement=placed))
    found, _ = check(step, (weights(4), batch(3)), make_mesh(placed.meshes), steps=2, feed=feed_state)
    assert [w.devices() for w in found] == [{jax.devices()[mesh]} for mesh in placement]


def test_schedule_of_a_users_own_class() -> None:
    class Serial(jaxpp.BaseSchedule):
        """One microbatch after the other."""

        def tasks(self, n_mubatches: int) -> ScheduleTasks:
            both = ("forward", "backward")
            return [
                [jaxpp.Task(kind, stage, number) for number in range(n_mubatches) for kind in both]
                for stage in range(self.num_stages)
            ]

    check(partial(sgd_step, schedule=Serial(3)), (weights(3), batch(4)), make_mesh(3))


def test_forward_only() -> None:
    def evaluate(params: Any, batch: Any) -> Any:
        outputs = partial(_outputs, params)
        return jaxpp.treduce(outputs, batch, schedule=jaxpp.GPipe(3), operation=jaxpp.Concat)

    def _outputs(params: Any, microbatch: Any) -> Any:
        return layers(params, microbatch["x"])

    check(evaluate, (weights(3), batch(4)), make_mesh(3))
