"""`schedule="auto"` and `jaxpp.tune`: what is chosen, that numbers stay those of jax.jit, and where the state lives."""

# pyright: reportUnknownLambdaType=false

import gc
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from unit.end_to_end import test_partition
from unit.end_to_end.compare import assert_same, batch, loss, make_mesh, sgd_step, weights
from unit.end_to_end.tuning import SECONDS, given, quick
from unit.notebook import in_a_notebook

import jaxpp.api as jaxpp
from jaxpp import schedules as S
from jaxpp import target, tune
from jaxpp.ir.errors import ProgramError
from jaxpp.jit import MpmdFunction
from jaxpp.saved.saved_step import SavedStep
from jaxpp.step import CompiledStep
from jaxpp.tuning.argument_moves import Moves
from jaxpp.tuning.auto import AutoLowered, AutoStep
from jaxpp.tuning.tuner import Tuner
from jaxpp.tuning.ways import Ways

STEP = partial(sgd_step, schedule="auto")
HEAVY = [1.0, 1.0, 1.0, 3.0]
"""What four layers cost: the best cuts on two meshes are 3, 1."""
FASTER: dict[tuple[int, ...], float] = {(2, 2): 10.0, (3, 1): 8.0}
SLOWER: dict[tuple[int, ...], float] = {(2, 2): 10.0, (3, 1): 12.0}


def made(step: Any = STEP, donate_argnums: Any = 0, **options: Any) -> MpmdFunction:
    return jaxpp.mpmd_jit_with_loop(step, make_mesh(2), donate_argnums=donate_argnums, **options)


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("jaxpp: auto:")]


def homes(tree: Any) -> list[int]:
    return [jax.devices().index(*leaf.sharding.device_set) for leaf in jax.tree.leaves(tree)]


def train(function: MpmdFunction, times: Any, layers: Any = HEAVY, state: Any = None, data: Any = None) -> Any:
    """Train until the step is tuned, as it would under jax.jit; the state, and where it was."""
    ours, data = jax.tree.map(jnp.copy, weights(4) if state is None else state), batch(4) if data is None else data
    theirs = jax.device_get(ours)
    plain, places = jax.jit(STEP), list[list[int]]()
    with given(layers, lambda step: times[step.choice.cuts]):
        for _ in range(36):
            ours, losses = function(ours, data)
            theirs, expected = plain(theirs, data)
            assert_same((ours, losses), (theirs, expected), exact=True)
            places += [homes(ours)] if homes(ours) not in places[-1:] else []
            if function.tuned:
                return ours, places
    raise AssertionError("never tuned")


def test_it_takes_what_is_faster(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    function = made()
    state, places = train(function, FASTER)
    assert places == [[0, 0, 1, 1], [0, 0, 0, 1]] * 2, "there, back to compare, and there again"
    tuned = function.tuned
    assert tuned is not None
    assert (tuned.cuts, tuned.speedup, tuned.moved) == ((3, 1), 1.25, (1, 256))
    assert tuned.before.choice.cuts == (2, 2)
    _, trial = tuned.trials
    start, first, second, third = said(capsys)
    assert start == (
        "jaxpp: auto: tunes for about 55 steps, which are steps of the training: first 2, 2 layers in 1f1b"
    )
    assert first == "jaxpp: auto: 2, 2 layers in 1f1b: takes 10 ms a step, of which its meshes compute 44%, 89%"
    assert second.startswith("jaxpp: auto: 3, 1 layers in an order of its own")
    assert second.endswith(" ms, took 8")
    assert third.endswith(": 1.25 times as fast; 1 arrays (0.000256 MB) moved to other stages")
    fixed = made(partial(sgd_step, schedule=None), cuts=tuned.partition)
    assert homes(fixed(state, batch(4))[0]) == [0, 0, 0, 1]
    tuned.save(tmp_path / "auto.txt")
    assert S.resolve(tmp_path / "auto.txt") == tuned.schedule
    assert (tuned.partition.lower_bound / tuned.partition.value) == pytest.approx(tuned.lower_bound / trial.predicted)
    assert tuned.code == 'schedule=Path("auto.txt"), cuts=[3, 1]  # after tuned.save("auto.txt")'
    tuned.draw(tmp_path / "auto.svg")
    drawn = (tmp_path / "auto.svg").read_text()
    assert drawn.index(">before: 2 meshes") < drawn.index(">after: 2 meshes")


def test_it_goes_back_from_what_is_slower(capsys: pytest.CaptureFixture[str]) -> None:
    function = made()
    _, places = train(function, SLOWER)
    assert places == [[0, 0, 1, 1], [0, 0, 0, 1], [0, 0, 1, 1], [0, 0, 0, 1], [0, 0, 1, 1]], "two orders were tried"
    assert function.tuned is not None
    assert function.tuned.code == 'schedule="1f1b", cuts=[2, 2]'
    assert function.tuned.speedup == 1
    assert said(capsys)[-1] == "jaxpp: auto: goes back to 2, 2 layers in 1f1b"


class InTurn(dict[tuple[int, ...], list[float]]):
    """The times of each choice, one after the other; the last one stays."""

    def __getitem__(self, cuts: tuple[int, ...]) -> Any:
        times = super().__getitem__(cuts)
        return times.pop(0) if len(times) > 1 else times[0]


def test_a_disturbed_trial_is_repeated() -> None:
    """A trial counts once 1F1B takes as long after it as before it."""
    function = made()
    times = InTurn({(2, 2): [10.0, 20.0, 20.0], (3, 1): [9.0, 16.0]})
    train(function, times)
    assert function.tuned is not None
    assert (function.tuned.cuts, function.tuned.best.measured, function.tuned.failed) == ((3, 1), 8.0, ())


@pytest.mark.parametrize(
    ("times", "words"),
    [
        (
            {(2, 2): [10.0], (3, 1): [3.3]},
            r"took 3\.3 ms, .* should compute 6\.667, and 1f1b 10 before it and 10 after",
        ),
        ({(2, 2): [10.0, 14.0] * 8, (3, 1): [8.0]}, r"took 8 ms, .* and 1f1b 1[04] before it and 1[04] after it"),
    ],
    ids=["faster than possible", "on a busy machine"],
)
def test_a_trial_that_stays_undecided_is_not_kept(times: dict[tuple[int, ...], list[float]], words: str) -> None:
    function = made()
    train(function, InTurn(times))
    tuned = function.tuned
    assert tuned is not None
    assert (tuned.cuts, tuned.speedup) == ((2, 2), 1)
    assert {each.choice.cuts for each in tuned.trials} == {(2, 2)}
    undecided = [each for each in tuned.failed if each.startswith("3, 1 layers")]
    assert undecided
    assert all(re.search(f": undecided after 3 trials: {words}", each) for each in undecided)
    assert undecided[0] in str(tuned)


def test_one_mesh_leaves_nothing_to_choose(capsys: pytest.CaptureFixture[str]) -> None:
    function = jaxpp.mpmd_jit_with_loop(STEP, make_mesh(1))
    train(function, {(4,): 10.0})
    assert said(capsys)[2:] == [
        "jaxpp: auto: nothing that was looked for promises to be faster",
        "jaxpp: auto: stays with 4 layers in 1f1b",
    ]


def test_a_notebook_shows_the_steps_of_the_tuning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs = in_a_notebook(monkeypatch)
    train(jaxpp.mpmd_jit_with_loop(STEP, make_mesh(1)), {(4,): 10.0})
    (texts,) = [each.texts for each in outputs if each.texts[0].startswith("jaxpp: auto: tunes for about 55 steps")]
    assert texts[1].endswith("first 4 layers in 1f1b\njaxpp: auto: step 1 of about 55")
    assert texts[-2].splitlines()[1:] == [
        "jaxpp: auto: 4 layers in 1f1b: takes 10 ms a step, of which its meshes compute 100%",
        "jaxpp: auto: nothing that was looked for promises to be faster",
    ]
    assert texts[-1].splitlines()[-1] == "jaxpp: auto: stays with 4 layers in 1f1b"
    assert said(capsys) == []


def test_a_choice_that_is_refused() -> None:
    of = Ways.of

    def refusing(self: Ways, choice: Any) -> Any:
        if choice.cuts == (3, 1):
            raise ProgramError("mesh 0 needs 8 bytes")
        return of(self, choice)

    function = made()
    with mock.patch.object(Ways, "of", refusing):
        _, places = train(function, FASTER)
    assert places == [[0, 0, 1, 1]]
    assert re.search(r"3, 1 layers in an order of its own(, backwards in two)?: mesh 0 needs 8", str(function.tuned))


def test_a_choice_for_which_devices_are_too_small() -> None:
    """CPUs don't say how much memory they have; others do."""
    function = made()
    lowered: Any = function.lower(weights(4), batch(4))
    assert lowered.ways.room is None

    def needed(step: CompiledStep) -> list[Any]:
        is_layered = ": 4 stages on 2 meshes" in repr(step)
        return [SimpleNamespace(peak_memory_in_bytes=1 if is_layered else 10**6), None]

    with mock.patch.object(Ways, "room", 10**5), mock.patch.object(CompiledStep, "memory_analysis", needed):
        _, places = train(function, FASTER)
    assert places == [[0, 0, 1, 1]]
    assert ": a device needs 1,000,000 bytes, and has 100,000" in str(function.tuned)


def keyed_step(state: Any, data: Any) -> Any:
    """With a random key in the state, and a step count that all stages have."""
    params, key, count = state
    key, here = jax.random.split(key)
    drop = partial(jax.random.bernoulli, here, 0.9, (8, 8))
    params, losses = sgd_step([w * drop() for w in params], data, schedule="auto")
    return (params, key, count + 1), losses


def test_random_keys_and_what_all_stages_have_move_too() -> None:
    state = weights(4), jax.random.key(0), jnp.int32(0)
    ours, theirs, function = jax.tree.map(jnp.copy, state), state, made(keyed_step)
    with given(HEAVY, lambda step: FASTER[step.choice.cuts]):
        while function.tuned is None:
            (ours, losses), (theirs, expected) = function(ours, batch(4)), jax.jit(keyed_step)(theirs, batch(4))
            assert_same((ours, losses), (theirs, expected))
    assert homes(ours[0]) == [0, 0, 0, 1]


def adapted_step(adapters: Any, frozen: Any, data: Any) -> Any:
    """Only the adapters are trained; the weights come in again at every step, and are not donated."""

    def adapted(adapters: Any, microbatch: Any) -> jax.Array:
        return loss([w + a for w, a in zip(frozen, adapters, strict=True)], microbatch)

    return sgd_step(adapters, data, schedule="auto", loss=adapted)


def test_what_is_not_donated_moves_once() -> None:
    """The weights that lie on the first meshes are moved when the step goes elsewhere, not at every step."""
    function = made(adapted_step)
    adapters = theirs = [0 * w for w in weights(4)]
    adapters = jax.tree.map(jnp.copy, adapters)
    places = function.lower(adapters, weights(4), batch(4)).compile().in_shardings[0][1]
    frozen = [jax.device_put(w, place.sharding) for w, place in zip(weights(4), places, strict=True)]
    moved: list[int] = []
    original = Moves._move

    def counting(self: Moves, number: int, *args: Any) -> Any:
        found = original(self, number, *args)
        moved.append(id(found)) if number == 6 else None
        return found

    with given(HEAVY, lambda step: FASTER[step.choice.cuts]), mock.patch.object(Moves, "_move", counting):
        for _ in range(16):
            adapters, losses = function(adapters, frozen, batch(4))
            theirs, expected = jax.jit(adapted_step)(theirs, weights(4), batch(4))
            assert_same((adapters, losses), (theirs, expected), exact=True)
    assert function.tuned is not None
    assert function.tuned.cuts == (3, 1)
    assert homes(frozen) == [0, 0, 1, 1], "they are the caller's"
    assert len(moved) > 4
    assert len(set(moved)) <= 2, "it is there twice: to be tried, and to stay"
    (step,) = function._compiled.values()
    assert isinstance(step, AutoStep)
    moves = step.tuner._moves
    assert moves._moved
    del frozen
    gc.collect()
    assert not moves._moved, "nothing moved outlives what it was made of"


def scanned_step(params: Any, data: Any) -> Any:
    """A scan over the stack of all layers, in a plain loop over the microbatches that names no schedule."""

    def loss(params: Any, microbatch: Any) -> jax.Array:
        x, _ = jax.lax.scan(lambda x, w: (jaxpp.mark_stage_end(jnp.tanh(x @ w)), None), microbatch["x"], params)
        return jnp.mean((x - microbatch["y"]) ** 2)

    def add(sums: Any, microbatch: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(params, microbatch)
        return sums + gradient, value

    gradients, losses = jax.lax.scan(add, jnp.zeros_like(params), data)
    return params - 0.1 * gradients, losses


def test_a_stack_of_layers_in_a_plain_loop() -> None:
    """Unequal cuts are tried; as rows cross, they are slower than another order on equal ones."""

    def time(step: Tuner) -> float:
        return 12.0 if step.choice.cuts == (3, 1) else 10.0 if step.choice.schedule.name == "1f1b" else 9.0

    ours = theirs = jnp.stack(weights(4))
    function = made(scanned_step, schedule="auto", donate_argnums=())
    with given(HEAVY, time):
        while function.tuned is None:
            (ours, losses), (theirs, expected) = function(ours, batch(4)), jax.jit(scanned_step)(theirs, batch(4))
            assert_same((ours, losses), (theirs, expected), exact=True)
    assert (function.tuned.cuts, function.tuned.schedule.name) == ((2, 2), "search")
    assert {trial.choice.cuts for trial in function.tuned.trials} == {(2, 2), (3, 1)}
    assert function.tuned.moved == (0, 0)


def evaluate(params: Any, data: Any) -> Any:
    return jaxpp.treduce(partial(loss, params), data, operation=jaxpp.Concat())


def test_others_follow() -> None:
    """An evaluation, and the step for another number of microbatches: nothing is moved for them, nor back."""
    function = made()
    test = jaxpp.mpmd_jit_with_loop(evaluate, make_mesh(2), schedule=function)
    state, other = weights(4), batch(6)
    for _ in range(2):  # before it is tuned, and after
        assert_same(test(state, other), jax.jit(evaluate)(jax.device_get(state), other), exact=True)
        expected = jax.jit(STEP)(jax.device_get(state), other)
        state, losses = function(state, other)
        assert_same((state, losses), expected, exact=True)
        if function.tuned is None:
            state, _ = train(function, FASTER, state=state, data=other)
        expected = jax.jit(STEP)(jax.device_get(state), batch(4))
        state, losses = function(state, batch(4))
        assert_same((state, losses), expected, exact=True)
        assert homes(state) == [0, 0, 0, 1]
        shardings = test.lower(state, other).compile().in_shardings[0][0]
        assert [sorted(each.mesh_ids) for each in shardings] == [[0], [0], [0], [1]]
    (step,) = test._compiled.values()
    assert isinstance(step, AutoStep)
    assert len(step.tuner._made) == 1, "programs that were followed are dropped"


def test_one_that_is_only_looked_at_is_not_waited_for() -> None:
    function = made()
    looked_at = function.lower(weights(4), batch(4)).compile()
    assert "parameters" in looked_at.summary()
    train(function, FASTER)
    assert_same(looked_at(weights(4), batch(4)), jax.jit(STEP)(weights(4), batch(4)), exact=True)
    assert repr(looked_at).startswith("<AutoStep in 3, 1 layers in an order of its own")


def test_one_that_is_saved_keeps_its_compiler_options(tmp_path: Path) -> None:
    """Whatever is asked of a step that is tuned is that of its current choice."""
    options = {"xla_cpu_enable_fast_math": False}
    step = made(compiler_options=options).compile(weights(4), batch(4))
    step.save(tmp_path)
    assert SavedStep.read(tmp_path).description["compiler_options"] == options
    assert_same(jaxpp.load(tmp_path)(weights(4), batch(4)), jax.jit(STEP)(weights(4), batch(4)), exact=True)


def test_another_takes_over_from_one_that_is_gone() -> None:
    function = made()
    compiled = function.compile(weights(4), batch(4))
    state, _ = compiled(weights(4), batch(4))
    del compiled
    gc.collect()
    _, places = train(function, FASTER, state=state)
    assert places[-1] == [0, 0, 0, 1]


def test_steps_that_are_measured_otherwise_do_not_count() -> None:
    function = made()
    state = weights(4)
    with jaxpp.collect_task_times_ms() as times:
        for _ in range(8):
            state, _ = function(state, batch(4))
    assert function.tuned is None
    assert times is not None
    assert len(times["forward 0"]) == 8 * 4
    compiled = function.compile(state, batch(4))
    expected = jax.jit(STEP)(jax.device_get(state), batch(4))
    assert_same(compiled.trace(state, batch(4))[0], expected, exact=True)


def test_equal_costs_give_equal_choices() -> None:
    lowered: Any = made().lower(weights(4), batch(4))
    with given(HEAVY, lambda step: 0.0):
        layers = lowered.ways.layered()
        layers = layers.layers(layers.compiled.trace(weights(4), batch(4))[1])
    one, other = (replace(lowered.ways, seconds=SECONDS).search(layers) for _ in range(2))
    assert [each.key for each in one[0]] == [each.key for each in other[0]]
    assert one[1] == other[1]


def test_tuned_by_hand() -> None:
    params, data = weights(4), batch(4)
    step = made(partial(sgd_step, schedule=jaxpp.Interleaved1F1B(num_stages=4, mpmd_dim=2)))
    with given(HEAVY, lambda step: FASTER[step.choice.cuts], steps=2):
        tuned = tune(step, params, data, seconds=0.1)
    assert tuned.cuts == (3, 1)
    assert not params[0].is_deleted()
    assert step.tuned is None
    assert_same(made(cuts=tuned.partition)(params, data), jax.jit(STEP)(weights(4), batch(4)), exact=True)


def test_tuned_by_what_is_measured() -> None:
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (weights(4), batch(4)))
    tuned = tune(made(), *shapes, seconds=0.1)
    assert tuned.before.measured is not None
    assert all(trial.measured and trial.measured > 0 for trial in tuned.trials)
    assert tuned.best.time == min(trial.time for trial in tuned.trials)
    assert tuned.costs.stages == tuned.schedule.stages


def test_planned_for_devices_that_are_not_here() -> None:
    devices = np.array(target("cpu", devices=2).devices).reshape(2, 1)
    mesh = jaxpp.MpmdMesh(Mesh(devices, ("mpmd", "data")), "mpmd")
    step = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule="auto", loss=test_partition.loss), mesh)
    heavy, data = jax.eval_shape(lambda: (test_partition.heavy_last(3), batch(4, 64)))
    with quick():
        plan = step.lower(heavy, data).compile().plan
    assert step.tuned is not None
    assert step.tuned.cuts[-1] == 1
    assert step.tuned.speedup > 1
    assert ": would take " in str(step.tuned)
    assert str(step.tuned.schedule) in plan.schedule
    assert step.tuned.best.predicted == pytest.approx(1e3 * plan.step_seconds)
    assert tune(step, heavy, data, seconds=0.1).cuts == step.tuned.cuts


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ([1.0, 2.0, 0.5], ["would take 1 ms", "should take 2 ms", "should take 0.5 ms", "2.00 times as fast"]),
        ([1.0] + [2.0] * 6, ["stays with"]),
        ([None], ["takes"]),
    ],
)
def test_a_plan_that_is_slower_than_1f1b_is_not_taken(
    times: list[float | None], words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the plan of the layers promised; where that of 1F1B says nothing, its promise counts."""
    monkeypatch.setattr(AutoLowered, "_planned_ms", lambda *_: times.pop(0))
    mesh = target("cpu", devices=2).mesh((2, 1), ("mpmd", "data"))
    step = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule="auto", loss=test_partition.loss), mesh)
    heavy, data = jax.eval_shape(lambda: (test_partition.heavy_last(3), batch(4, 64)))
    tuned = tune(step, heavy, data, seconds=0.1)
    assert all(each in str(tuned) for each in words)


def test_a_limit_of_memory() -> None:
    lowered = made().lower(weights(4), batch(4))
    peak = max(lowered.compile().memory_analysis()[0].peak_memory_in_bytes, *lowered.program().peak_bytes)  # pyright: ignore[reportOptionalMemberAccess]
    function = made(memory_limit=4 * peak)
    _, places = train(function, FASTER)
    assert places[-1] == [0, 0, 0, 1]
    with pytest.raises(jaxpp.LimitError, match=r"mesh . needs .* memory limit is 600"):
        made(memory_limit=600)(weights(4), batch(4))


REFUSED = {
    "cuts": ({"cuts": [2, 2]}, 'cuts: schedule="auto" finds them; leave them out, or give a schedule'),
    "recompute": ({"recompute": "inputs"}, 'recompute: schedule="auto" finds the stages; leave it out, and give a'),
    "operations": (
        {"options": jaxpp.StepOptions(operations={"log": lambda: None})},
        'operations: schedule="auto" has no tasks of your own; leave',
    ),
    "costs": (
        {"options": jaxpp.StepOptions(costs=S.Costs()), "memory_limit": 10**6},
        'costs: schedule="auto" measures them; leave them out',
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_options_that_are_refused(name: str) -> None:
    options, message = REFUSED[name]
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        made(**options)(weights(4), batch(4))


def test_steps_that_are_refused() -> None:
    with pytest.raises(S.ScheduleError, match=r"^auto: 1 marked layers are fewer than 2 meshes: mark every layer$"):
        made()(weights(1), batch(4))
    with pytest.raises(ValueError, match=r'^schedule="auto": a step is tuned by .* give the step of the training'):
        jaxpp.mpmd_jit_with_loop(evaluate, make_mesh(2), schedule="auto")(weights(4), batch(4))
    with pytest.raises(ValueError, match=r"auto has no options, found auto{chunks=2}: jaxpp.tune has some"):
        made(partial(sgd_step, schedule="auto{chunks=2}"))(weights(4), batch(4))
    fixed = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule=jaxpp.Std1F1B(4)), make_mesh(4))
    fixed.lower(weights(4), batch(4))
    with pytest.raises(
        ValueError, match=r'^schedule: .*sgd_step.* is not tuned: give its own, or "auto" to that step$'
    ):
        jaxpp.mpmd_jit_with_loop(evaluate, make_mesh(4), schedule=fixed)(weights(4), batch(4))
    with pytest.raises(TypeError, match=r"^tune: expected a step of mpmd_jit_with_loop, .* found functools\.partial"):
        tune(STEP, weights(4), batch(4))  # pyright: ignore[reportArgumentType]


def tabled_step(state: Any, data: Any) -> Any:
    """A table that both meshes read, or one of them, is donated and comes back as it was."""

    def tabled(params: Any, table: Any, microbatch: Any) -> jax.Array:
        x = microbatch["x"]
        for number, w in enumerate(params):
            x = jaxpp.mark_stage_end(jnp.tanh(x @ w + (table if number in (0, 2) else 0)))
        return jnp.mean((x - microbatch["y"]) ** 2)

    params, table = state
    params, losses = sgd_step(params, data, schedule="auto", loss=lambda p, mb: tabled(p, table, mb))
    return (params, table), losses


def test_what_moves_to_fewer_meshes_and_comes_back_unchanged() -> None:
    state = weights(4), jnp.full(8, 0.1)
    ours, theirs, function = jax.tree.map(jnp.copy, state), state, made(tabled_step)
    with given(HEAVY, lambda step: FASTER[step.choice.cuts]):
        while function.tuned is None:
            (ours, losses), (theirs, expected) = function(ours, batch(4)), jax.jit(tabled_step)(theirs, batch(4))
            assert_same((ours, losses), (theirs, expected))
    assert homes(ours[1]) == [0]


def test_a_process_alone_that_is_not_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    function = made()
    second = mock.Mock(wraps=jax, Array=jax.Array, errors=jax.errors)
    second.process_index.return_value = 1
    with mock.patch("jaxpp.tuning.tuner.jax", second):
        train(function, FASTER)
    assert len(said(capsys)) == 4


def test_some_of_several_processes_are_refused() -> None:
    function: Any = made()
    ways = function.lower(weights(4), batch(4)).ways
    unstack = [SimpleNamespace(devices=np.array([mock.Mock(process_index=number)])) for number in (0, 1)]
    message = r'^schedule="auto": the mesh is on 2 of 3 processes, expected all of them, .* give a schedule$'
    with (
        mock.patch.dict(function._mesh.__dict__, {"unstack": unstack}),
        mock.patch.object(jaxpp.MpmdMesh, "is_present", True),
        mock.patch("jaxpp.jit.jax.process_count", return_value=3),
        pytest.raises(ValueError, match=message),
    ):
        function._check_auto(ways)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("")], ids=["interrupted", "failed"])
def test_it_begins_again(error: BaseException) -> None:
    """After a failure in a trial: without that choice; after Ctrl-C with it."""
    function, lead = made(), Tuner._lead

    def failing(self: Tuner, choice: Any) -> None:
        lead(self, choice)
        if choice.cuts == (3, 1) and error not in seen:
            seen.append(error)
            raise error

    state, seen = weights(4), list[BaseException]()
    with mock.patch.object(Tuner, "_lead", failing), given(HEAVY, lambda step: FASTER[step.choice.cuts]):
        for _ in range(6):
            try:
                state, _ = function(state, batch(4))
            except type(error):
                break
        (step,) = function._compiled.values()
        assert isinstance(step, AutoStep)
        assert step.tuner.choice.cuts == (2, 2)
        assert step.tuner.auto.choice == step.tuner.choice
    assert seen
    state, places = train(function, FASTER, state=state)
    assert function.tuned is not None
    assert [each.endswith(": RuntimeError") for each in function.tuned.failed] == [True] * isinstance(error, Exception)
    assert places[0] == [0, 0, 1, 1]
    assert len(step.tuner._made) == 1


def test_layers_that_cannot_be_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """It stays with 1F1B, and says why."""
    function = made(memory_limit=10**6)
    of = Ways.overfull

    stats: Any = SimpleNamespace(memory_analysis=lambda: [SimpleNamespace(peak_memory_in_bytes=10**7), None])

    def over(self: Ways, step: Any) -> str:
        return of(self, stats)

    with mock.patch.object(Ways, "overfull", over):
        _, places = train(function, FASTER)
    assert places == [[0, 0, 1, 1]]
    _, first, second, third = said(capsys)
    assert first == "jaxpp: auto: 2, 2 layers in 1f1b: takes 10 ms a step"
    assert second == "jaxpp: auto: layers are not measured: a device needs 10,000,000 bytes, and has 1,000,000"
    assert third == "jaxpp: auto: stays with 2, 2 layers in 1f1b"
    assert function.tuned is not None
    with pytest.raises(S.ScheduleError, match=r"^2, 2 layers in 1f1b: what its stages cost was not measured$"):
        _ = function.tuned.partition


def test_meshes_on_one_device_share_its_room() -> None:
    step = jaxpp.mpmd_jit_with_loop(STEP, jaxpp.MpmdMesh.of([Mesh(np.array(jax.devices()[:1]), ("data",))] * 4))
    lowered: Any = step.lower(weights(4), batch(4))
    with mock.patch.object(type(jax.devices()[0]), "memory_stats", return_value={"bytes_limit": 4000}):
        assert lowered.ways.room == 1000


def test_one_that_is_compiled_before_and_runs_after() -> None:
    """The one that would lead next follows what was tuned."""
    function = made()
    other, one = function.compile(weights(4), batch(6)), function.compile(weights(4), batch(4))
    state, data = weights(4), batch(4)
    with given(HEAVY, lambda step: FASTER[step.choice.cuts]):
        while function.tuned is None:
            state, _ = one(state, data)
    del one
    assert homes(other(state, batch(6))[0]) == [0, 0, 0, 1]


def test_an_evaluation_that_is_planned_first_chooses_nothing() -> None:
    devices = np.array(target("cpu", devices=2).devices).reshape(2, 1)
    mesh = jaxpp.MpmdMesh(Mesh(devices, ("mpmd", "data")), "mpmd")
    function = jaxpp.mpmd_jit_with_loop(STEP, mesh)
    params, data = jax.eval_shape(lambda: (weights(4), batch(4)))
    jaxpp.mpmd_jit_with_loop(evaluate, mesh, schedule=function).lower(params, data).compile()
    assert (function.tuned, function._auto.choice) == (None, None)


def test_the_layered_program_is_not_seen() -> None:
    """After each step the program is that of the choice, also after the one in which each layer is a stage."""
    function = made()
    step: Any = function.compile(weights(4), batch(4))
    state = weights(4)
    with given(HEAVY, lambda step: SLOWER[step.choice.cuts]):
        while function.tuned is None:
            state, _ = step(state, batch(4))
            assert {
                call.tasks[0][1]
                for each in step.executable.program.sequences
                for call in each
                if getattr(call, "tasks", ())
            } == {0, 1}


def test_calls_of_tune_that_are_refused() -> None:
    step, args = made(), (weights(4), batch(4))
    message = "^tune: steps inside of jaxpp.frozen or collect_task_times_ms don't count: call it outside$"
    with jaxpp.collect_task_times_ms(), pytest.raises(ValueError, match=message):
        tune(step, *args)
    with jaxpp.frozen({0: 1.0}), pytest.raises(ValueError, match=message):
        tune(step, *args)
    with pytest.raises(S.ScheduleError, match=r"^seconds must be a positive number, found '5'$"):
        tune(step, *args, seconds="5")  # pyright: ignore[reportArgumentType]  # wrong on purpose
    with pytest.raises(TypeError, match=r"^tune: the stages of mpmd_jit_by_yield are its marks, expected one of mpmd"):
        tune(jaxpp.mpmd_jit_by_yield(STEP, make_mesh(2)), *args)
    test = jaxpp.mpmd_jit_with_loop(evaluate, make_mesh(2), schedule=step)
    step.compile(*args)
    with pytest.raises(ValueError, match=r"^`schedule=step`: both must mark equally many layers: found 3, expected 4$"):
        test(weights(3), batch(4))


def test_one_that_is_told_to_follow_does_not_lead() -> None:
    """Though it trains, and runs first."""
    function = made()
    follower, state = made(schedule=function), weights(4)
    expected = jax.jit(STEP)(state, batch(6))
    state, losses = follower(state, batch(6))
    assert_same((state, losses), expected, exact=True)
    train(function, FASTER, state=state)
    assert homes(follower(weights(4), batch(6))[0]) == [0, 0, 0, 1]


def test_threads_take_turns() -> None:
    """An evaluation in a thread of its own, while the step is tuned."""
    function = made(donate_argnums=())
    test = jaxpp.mpmd_jit_with_loop(evaluate, make_mesh(2), schedule=function)
    state, expected = weights(4), jax.jit(evaluate)(weights(4), batch(4))
    with ThreadPoolExecutor() as pool, given(HEAVY, lambda step: FASTER[step.choice.cuts]):
        losses = [pool.submit(test, weights(4), batch(4)) for _ in range(12)]
        while function.tuned is None:
            state = pool.submit(function, state, batch(4)).result()[0]
        for each in losses:
            assert_same(each.result(), expected, exact=True)
    assert homes(function(state, batch(4))[0]) == [0, 0, 0, 1]
