"""The library by name, the classes with JaxPP's names, and a user's own."""

import hashlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.schedules.library import Made, schedules

from jaxpp import schedules as S
from jaxpp.schedules.builders.blocks import block
from jaxpp.schedules.builders.priorities import by_priority
from jaxpp.schedules.builders.steps import repeat
from jaxpp.schedules.classes import LibrarySchedule, ScheduleTasks
from jaxpp.schedules.engine.activations import activations
from jaxpp.schedules.library.classic import gpipe, one_f_one_b
from jaxpp.schedules.rewrites.tasks import subdivide


@settings(deadline=None, max_examples=150)
@given(schedules())
def test_every_schedule_is_valid_for_any_counts(made: Made) -> None:
    schedule = made.schedule
    S.check(schedule)
    stages = made.meshes * made.chunks + schedule.name.startswith("vocab")
    assert (schedule.meshes, schedule.stages, schedule.microbatches) == (made.meshes, stages, made.microbatches)
    assert schedule.name in S.names()


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), st.integers(1, 6))
def test_every_placement_is_served(homes: list[int], microbatches: int) -> None:
    meshes = sorted(set(homes))
    placement = S.Placement.of(*map(meshes.index, homes))
    for build in (gpipe, one_f_one_b):
        S.check(build(placement.meshes, microbatches, placement=placement))
    alive = activations(one_f_one_b(placement.meshes, microbatches, placement=placement))
    limits = [placement.stages - stage for stage in range(placement.stages)]
    for mesh, peak in enumerate(alive):
        assert peak <= sum(min(microbatches, limits[stage]) for stage in placement.stages_of(mesh))


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 7), st.integers(1, 12))
def test_with_one_stage_per_mesh_the_greedy_order_is_1f1b(meshes: int, microbatches: int) -> None:
    backwards = S.Placement.of(*reversed(range(meshes)))
    greedy = one_f_one_b(meshes, microbatches, placement=backwards)
    assert greedy.orders[::-1] == one_f_one_b(meshes, microbatches).orders


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: S.make(["1f1b"], meshes=1, microbatches=1),  # pyright: ignore[reportArgumentType]  # wrong on purpose
            "no schedule is named ['1f1b']; did you mean '1f1b'? There are",
        ),
        (
            lambda: S.make("zb", meshes=1, microbatches=1),
            "no schedule is named 'zb'; did you mean 'zb-h1', 'zb-h2' or 'zb-1p'? ",
        ),
        (
            lambda: S.make("seq1f1b{slices=4}", meshes=1, microbatches=1),
            "make takes options as arguments, as slices=4; S.resolve reads a text such as 'seq1f1b{slices=4}'",
        ),
        (lambda: S.make("interleaved", meshes=1, microbatches=1), "'interleaved'; did you mean 'interleaved-1f1b' or "),
        (
            lambda: S.make("zero-bubble", meshes=1, microbatches=1),
            "'zero-bubble'; did you mean 'zb-h1'? ",
        ),
        (lambda: S.make("", meshes=1, microbatches=1), "no schedule is named '': there are gpipe, 1f1b, "),
        (lambda: S.make("GPipes", meshes=1, microbatches=1), "'GPipes'; did you mean 'gpipe'? There are gpipe, 1f1b,"),
        (
            lambda: S.make("1f1b", meshes=1, microbatches=1, chunk=2),
            "'1f1b' has no option 'chunk': it takes chunks, pl",
        ),
        (lambda: gpipe(0, 1), "meshes must be a whole number of at least 1, found 0"),
        (lambda: one_f_one_b(2, -3), "microbatches must be a whole number of at least 1, found -3"),
        (lambda: S.make("1f1b", meshes=2, microbatches=1, chunks=float("nan")), "chunks must be a whole number of"),
        (
            lambda: gpipe(2, 1, placement=S.Placement.linear(3)),
            "gpipe: expected a placement on 2 meshes and no chunks",
        ),
        (
            lambda: gpipe(2, 1, placement=S.Placement.of(0, (0, 1))),
            "gpipe: each stage must be on one mesh, found stage",
        ),
        (
            lambda: S.make("dualpipe", meshes=4, microbatches=6),
            "dualpipe: microbatches must be at least 8, two per mesh",
        ),
        (lambda: S.make("dualpipe", meshes=3, microbatches=6), "dualpipe: meshes must be a multiple of 2, found 3"),
        (lambda: S.make("dualpipe-v", meshes=4, microbatches=7), "dualpipe-v: microbatches must be at least 8"),
        (lambda: S.make("chimera", meshes=4, microbatches=7), "chimera: microbatches must be a multiple of 2, found 7"),
        (lambda: S.make("hanayo", meshes=4, microbatches=7, chunks=3), "hanayo: chunks must be a multiple of 2, found"),
        (
            lambda: S.make("gis", meshes=4, microbatches=8, group=1),
            "gis: group must be from 2 to 4 for 4 meshes, found 1",
        ),
        (
            lambda: S.make("zb-h1", meshes=4, microbatches=7, waiting=-1),
            "waiting must be a whole number of at least 0, found -1",
        ),
        (lambda: S.make("gis", meshes=4, microbatches=7), "gis: microbatches must be a multiple of 2, found 7"),
        (lambda: S.make("v-half", meshes=0, microbatches=7), "meshes must be a whole number of at least 1, found 0"),
        (lambda: S.make("seq1f1b", meshes=4, microbatches=7, slices=0), "slices must be a whole number of at least 1"),
        (
            lambda: S.make("zb-1p", meshes=4, microbatches=7, costs=S.Costs(forward=[1, 2])),
            "forward: expected a number for each of 4 stages, found 2",
        ),
        (lambda: S.Interleaved1F1B(6, 4), "Interleaved1F1B: num_stages=6 can not be evenly divided by mpmd_dim=4"),
        (
            lambda: S.DualPipeV(12, 4),
            "DualPipeV only supports 2 * mpmd_dim stages, self.num_stages=12 requested with self.mpmd_dim=4",
        ),
        (lambda: S.DualPipeV(6, 3).tasks(5), "DualPipeV requires n_mubatches=5 >= self.num_stages=6"),
        (lambda: S.Std1F1B(-1), "The argument `num_stages` must be `>= 0`, and not 0; found -1"),
        (lambda: S.KimiK2(4, -1), "The argument `mpmd_dim` must be `>= 0`, and not 0; found -1"),
        (lambda: S.Std1F1B(1.5), "num_stages must be a whole number of at least 1, found 1.5"),  # pyright: ignore[reportArgumentType]  # users have no checker
        (lambda: S.Std1F1B(2).build(0), "microbatches must be a whole number of at least 1, found 0"),
    ],
)
def test_wrong_parameters_say_what_was_found_and_expected(build: Callable[[], object], message: str) -> None:
    with pytest.raises(S.ScheduleError) as error:
        build()
    assert message in str(error.value)


DIGESTS = {
    "gpipe": "422bee38",
    "1f1b": "93a38d3b",
    "eager-1f1b": "83b5fb82",
    "pipedream-2bw": "df6dc2ca",
    "interleaved-1f1b": "bbfdc1e4",
    "kimi-k2": "e159200c",
    "looped-bfs": "c93a73b8",
    "zb-h1": "b7b6100c",
    "zb-h2": "19d96eb1",
    "zb-1p": "a71dc585",
    "zb-2p": "63108ed4",
    "interleaved-zb": "f900a5e1",
    "zb-v": "806f93c9",
    "stp": "a19d688c",
    "v-half": "0af0ffdc",
    "v-min": "7ac63e2b",
    "dualpipe": "c2be0cc9",
    "dualpipe-v": "32d4cc72",
    "chimera": "59d17fe3",
    "hanayo": "de2a6a88",
    "bitpipe": "e81ed12c",
    "seq1f1b": "8f1e12a1",
    "seq1f1b-i": "14a37c96",
    "seq1f1b-zb": "4499e5f9",
    "slimpipe": "821ebfc9",
    "gis": "49beb0ae",
    "po-h": "130ef820",
    "po-f": "03f0d8c2",
    "vocab-1f1b": "48056697",
    "vocab-v-half": "7de69074",
    "bpipe": "1771ce31",
}


@pytest.mark.parametrize("name", S.names())
def test_no_schedule_changes_unawares(name: str) -> None:
    """Whoever changes a schedule says so: the first digits of a hash over its grids for small numbers."""
    digest = hashlib.sha256()
    for meshes, microbatches in itertools.product((1, 2, 3, 4, 6), (1, 2, 4, 5, 12)):
        try:
            digest.update(str(S.make(name, meshes=meshes, microbatches=microbatches)).encode())
        except S.ScheduleError as error:
            digest.update(str(error).encode())
    assert digest.hexdigest()[:8] == DIGESTS[name]


def test_numpy_integers_are_counts() -> None:
    assert gpipe(int(np.int64(2)), 2) == S.make("gpipe", meshes=np.int64(2), microbatches=np.int32(2))  # pyright: ignore[reportArgumentType]  # NumPy scalars index


CLASSES: list[tuple[LibrarySchedule, str, dict[str, int]]] = [
    (S.GPipe(4), "gpipe", {}),
    (S.Std1F1B(num_stages=4), "1f1b", {}),
    (S.Eager1F1B(4), "eager-1f1b", {}),
    (S.ZeroBubble(num_stages=4), "zb-h1", {}),
    (S.Interleaved1F1B(num_stages=12, mpmd_dim=4), "interleaved-1f1b", {"chunks": 3}),
    (S.KimiK2(num_stages=8, mpmd_dim=4), "kimi-k2", {"chunks": 2}),
    (S.Interleaved1F1B(8, 4, fuse_steady_state=True), "interleaved-1f1b", {"chunks": 2, "fused": True}),
    (S.KimiK2(8, 4, True), "kimi-k2", {"chunks": 2, "fused": True}),
    (S.InterleavedGPipe(8, 4), "looped-bfs", {"chunks": 2}),
    (S.InterleavedZeroBubble(8, 4), "interleaved-zb", {"chunks": 2}),
    (S.DualPipeV(num_stages=8, mpmd_dim=4), "dualpipe-v", {}),
]


@pytest.mark.parametrize(("made", "name", "options"), CLASSES)
def test_jaxpp_classes_build_the_librarys_schedules(made: LibrarySchedule, name: str, options: dict[str, int]) -> None:
    schedule = S.make(name, meshes=4, microbatches=8, **options)
    assert made.build(8) == schedule
    assert made.name == name
    tasks = made.tasks(8)
    assert isinstance(tasks, list)
    assert all(isinstance(row, list) for row in tasks)
    assert (
        tuple(tuple((cell,) if isinstance(cell, S.Task) else cell for cell in row) for row in tasks) == schedule.cells
    )
    assert [made.get_mpmd_idx(stage) for stage in range(made.num_stages)] == [
        schedule.placement[stage] for stage in range(schedule.stages)
    ]


@pytest.mark.parametrize("name", ["interleaved-1f1b", "kimi-k2", "interleaved-zb"])
@pytest.mark.parametrize("fused", [False, True])
def test_any_number_of_microbatches_in_groups(name: str, fused: bool) -> None:
    """Valid for all, and simulated: in groups of as many as there are meshes, where some are larger by one."""
    options: dict[str, object] = {"fused": True} if fused and name != "interleaved-zb" else {}
    for meshes, microbatches, chunks in itertools.product((1, 2, 3, 5), (1, 2, 3, 5, 8, 9), (1, 2, 3)):
        schedule = S.make(name, meshes=meshes, microbatches=microbatches, chunks=chunks, **options)
        S.check(schedule)
        assert schedule.microbatches == microbatches
        assert {len(cell) for cell in schedule.fused} <= ({2} if options else set())
    five = S.make(name, meshes=2, microbatches=5)
    forwards = [str(task) for task in five.orders[0] if task.kind == "forward"]
    assert forwards == ["0F0", "0F1", "0F2", "2F0", "2F1", "2F2", "0F3", "0F4", "2F3", "2F4"]


def test_turns_that_are_fused() -> None:
    """JaxPP's `fuse_steady_state`."""
    assert str(S.KimiK2(4, 2, fuse_steady_state=True).build(3)).splitlines()[2:] == [
        "mesh 0: 0F0 0F1 0F2 2F0 2F1 2F2     2B0     2B1 2B2 0B0 0B1 0B2",
        "mesh 1: .   1F0 1F1 1F2 3F0 3F1+3B0 3F2+3B1 3B2 1B0 1B1 1B2",
    ]


class Backwards(S.Std1F1B):
    """A user's own orders in a class of ours."""

    def tasks(self, n_mubatches: int) -> ScheduleTasks:
        return [row for row in gpipe(self.num_stages, n_mubatches).orders]


def test_a_class_of_the_library_can_be_subclassed() -> None:
    assert Backwards(2).build(3).orders == gpipe(2, 3).orders
    assert Backwards(2).build(3).name == "Backwards"


@dataclass(frozen=True)
class TwoPerMesh(S.BaseSchedule):
    """A user's class as JaxPP's users write them: bubbles as None, a fused pair, two stages on a mesh."""

    mpmd_dim: int = 1

    def get_mpmd_idx(self, stage_id: int) -> int:
        return stage_id % self.mpmd_dim

    def tasks(self, n_mubatches: int) -> ScheduleTasks:
        def task(stage: int, mubatch: int, kind: S.TaskType) -> S.Task:
            return S.Task.make(stage_id=stage, mubatch_idx=mubatch, fwd_or_bwd=kind)

        row: list[S.Task | list[S.Task] | None] = [None]
        for mubatch in range(n_mubatches):
            row += [task(stage, mubatch, S.TaskType.FWD) for stage in range(self.num_stages)]
            row += [[task(1, mubatch, S.TaskType.BWD), task(0, mubatch, S.TaskType.BWD)]]
        return [row]


def test_a_users_class_builds_a_checked_schedule() -> None:
    schedule = TwoPerMesh(num_stages=2).build(2)
    assert str(schedule).split("\n") == [
        "schedule: TwoPerMesh",
        "placement: 0 0",
        "mesh 0: 0F0 1F0 1B0+0B0 0F1 1F1 1B1+0B1",
    ]


class Broken(S.BaseSchedule):
    """Returns whatever it is told to."""

    rows: object = ()

    def tasks(self, n_mubatches: int) -> ScheduleTasks:
        return self.rows  # pyright: ignore[reportReturnType]  # the point of the tests below


F, B = S.Task("forward", 0, 0), S.Task("backward", 0, 0)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[F, 3]], "tasks() of mesh 0, element 1: expected Task, list of Task, or None, found 3"),
        ([[F, []]], "tasks() of mesh 0, element 1: expected Task, list of Task, or None, found []"),
        ([], "Broken: the placement names 1 meshes, but there are 0 orders"),
        (7, "Broken: tasks() must return one list of tasks per mesh, found 7"),
        ([F], "Broken: tasks() must return one list of tasks per mesh, found"),
        ([[B, F]], "mesh 0 position 0: B(stage 0, mb 0) needs F(stage 0, mb 0), which comes later on mesh 0"),
        ([[F, B]], "Broken: expected tasks for 2 microbatches, found 1"),
        (
            S.make("1f1b", meshes=2, microbatches=2),
            "Broken: get_mpmd_idx puts the stages on the meshes 0, those that tasks() returns are on 0 1",
        ),
    ],
)
def test_a_users_mistake_is_named(rows: object, message: str) -> None:
    broken = type("Broken", (Broken,), {"rows": rows})
    with pytest.raises(S.ScheduleError) as error:
        broken(num_stages=1).build(2)
    assert message in str(error.value)


def test_a_placement_with_copies_is_that_of_the_tasks() -> None:
    """What `placement` says of a stage on two meshes counts, and is named where `tasks` says otherwise."""

    class Two(S.BaseSchedule):
        tasks_on: str = "chimera"

        def placement(self) -> S.Placement:
            return S.make("chimera", meshes=4, microbatches=4).placement

        def tasks(self, n_mubatches: int) -> S.Schedule:
            return S.make(self.tasks_on, meshes=4, microbatches=n_mubatches)

    assert Two(4).build(4).placement.homes[0] == (0, 3)
    Two.tasks_on = "1f1b"
    with pytest.raises(
        S.ScheduleError, match=r"^Two: placement\(\) puts the stages on the meshes 0\+3 1\+2 2\+1 3\+0, "
    ):
        Two(4).build(4)


def test_a_users_class_of_stages_that_are_a_graph() -> None:
    after = [[], [], [0, 1]]

    class Towers(S.BaseSchedule):
        read: Any = after

        def placement(self) -> S.Placement:
            return S.Placement.of(0, 1, 2, after=self.read)

        def tasks(self, n_mubatches: int) -> ScheduleTasks | S.Schedule:
            plan = S.Placement.of(0, 1, 2, after=after)
            return by_priority("towers", plan, n_mubatches, lambda task: task.microbatch, tasks=("forward", "backward"))

    schedule = Towers(3).build(2)
    assert schedule.placement.after == ((), (), (0, 1))

    class Rows(Towers):
        def tasks(self, n_mubatches: int) -> ScheduleTasks:
            return [list(row) for row in schedule.orders]

    assert Rows(3).build(2).orders == schedule.orders
    other = type("Other", (Towers,), {"read": [[], [0], [0, 1]]})
    for built, message in (
        (Towers(4), "Towers: placement() must return a Placement of 4 stages, found 0 1 2"),
        (
            other(3),
            "Other: placement() says that stages read ((), (0,), (0, 1)), those that tasks() returns read "
            "((), (), (0, 1))",
        ),
    ):
        with pytest.raises(S.ScheduleError) as error:
            built.build(2)
        assert message in str(error.value)


@given(st.data())
@settings(deadline=None, max_examples=80)
def test_the_automatic_scheduler_takes_any_costs(data: st.DataObject) -> None:
    meshes, microbatches = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 9))
    times = st.lists(st.sampled_from([0.1, 0.5, 1.0, 2.0, 5.0]), min_size=meshes, max_size=meshes)
    costs = S.Costs(
        data.draw(times), data.draw(times), data.draw(times), hop=data.draw(st.sampled_from([0.0, 0.3, 2.0]))
    )
    for name in ("zb-1p", "zb-2p"):
        S.check(S.make(name, meshes=meshes, microbatches=microbatches, costs=costs))


def test_schedules_beyond_all_memory_are_refused() -> None:
    with pytest.raises(S.ScheduleError, match="are too many"):
        S.make("1f1b", meshes=10**9, microbatches=1)
    with pytest.raises(S.ScheduleError, match="1000 chunks are too many: their product may"):
        S.make("gpipe", meshes=100, microbatches=1000, chunks=1000)


@pytest.mark.parametrize("words", ["1f1b{chunks=99999}", "seq1f1b{slices=99999}", "slimpipe{layers=99999}"])
def test_an_option_has_a_limit(words: str) -> None:
    with pytest.raises(S.ScheduleError, match=r"must be at most 1,000, found 99999"):
        S.resolve(words, meshes=4, microbatches=8)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: S.make("zb-v", meshes=10**5, microbatches=10), "zb-v: meshes must be at most 1,000, found 100000"),
        (
            lambda: S.make("gpipe", meshes=1, microbatches=10**5, placement=S.Placement.of(*[0] * 1000)),
            "gpipe: 1000 stages, 100000 microbatches, 1 slices are too many: their product may be at most 10,000,000",
        ),
        (
            lambda: S.make("1f1b", meshes=1, microbatches=10**5, placement=S.Placement.of(*[0] * 1000)),
            "1f1b: 1000 stages, 100000 microbatches, 1 slices are too many",
        ),
        (
            lambda: S.resolve("1f1b{chunks=1000000000}", meshes=4, microbatches=8),
            "1f1b: 4 meshes, 8 microbatches, 100",
        ),
        (
            lambda: S.resolve("pipedream-2bw{delay=1000000000 steps=2}", meshes=4, microbatches=8),
            "pipedream-2bw: delay must be at most 1,000, found 1000000000",
        ),
        (lambda: S.Std1F1B(10**9).placement(), "a placement: 1000000000 meshes, 1 chunks are too many"),
        (lambda: S.Placement.waves(1, 10**6), "a placement: chunks must be at most 1,000, found 1000000"),
        (lambda: S.Plan("mine", S.Placement.linear(2), 10**9), "mine: 2 stages, 1000000000 microbatches, 1 slices are"),
        (
            lambda: block("mine", S.Placement.linear(1), 10**9, {S.F(0): 0}),
            "mine: 1 stages, 1000000000 micro",
        ),
        (lambda: S.search(10**9, 1), "search: 1000000000 meshes, 1 microbatches are too many"),
        (lambda: S.tune(S.Costs(), meshes=1, microbatches=10**9), "search: 1 meshes, 1000000000 microbatches are too"),
        (
            lambda: S.partition(S.Costs(forward=[1.0] * 4), meshes=2, microbatches=10**9),
            "partition: 2 meshes, 1000000000 microbatches are too many",
        ),
        (lambda: subdivide(S.make("gpipe", meshes=1, microbatches=1), 10**6), "subdivide: parts must be at most 1,000"),
        (
            lambda: repeat(S.make("gpipe", meshes=1, microbatches=1), 10**6),
            "repeat: steps must be at most 1,000",
        ),
    ],
)
def test_everything_that_makes_schedules_has_a_limit(build: Callable[[], object], message: str) -> None:
    with pytest.raises(S.ScheduleError) as error:
        build()
    assert str(error.value).startswith(message)


def test_what_a_recompute_reads_may_be_offloaded() -> None:
    """In either order; the reload comes before the recompute, and no activation waits in between."""
    schedule = S.make("interleaved-1f1b", meshes=2, microbatches=4)
    for both in (S.offload(S.recompute(schedule)), S.recompute(S.offload(schedule))):
        S.check(both)
        report = S.simulate(both, S.Costs(activation_bytes=10.0, message_bytes=2.0, copy_bandwidth=1e3))
        moved = [task for task in both if task.kind == "reload"]
        assert moved
        for task in moved:
            again = S.Task("recompute", task.stage, task.microbatch)
            assert report.times(task)[1] <= report.times(again)[0]
        assert activations(both) == activations(S.recompute(schedule))


def test_tasks_have_the_names_of_jaxpp() -> None:
    task = S.Task.make(1, 2, S.TaskType.BWD_W, 3.0)
    assert (task.stage_id, task.mubatch_idx, task.fwd_or_bwd) == (1, 2, S.TaskType.BWD_W)
