"""Tasks, placements, and the schedule that holds them."""

import pytest

from jaxpp.schedules import Kind, Placement, Schedule, ScheduleError, Task, TaskType, check
from jaxpp.schedules.library.classic import gpipe
from jaxpp.schedules.model.kinds import Need


def test_a_task_prints_as_its_cell() -> None:
    kinds = ("forward", "backward", "input_grad", "weight_grad", "offload")
    assert [str(Task(kind, 2, 13)) for kind in kinds] == ["2F13", "2B13", "2I13", "2W13", "2offload13"]
    assert Task("backward", 3, 1).words == "B(stage 3, mb 1)"


def test_jaxpp_argument_order_makes_the_same_task() -> None:
    made = Task.make(stage_id=1, mubatch_idx=4, fwd_or_bwd=TaskType.BWD)
    assert made == Task("backward", 1, 4)
    assert type(made.kind) is str
    assert len({made, Task(TaskType.BWD, 1, 4)}) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("forward", -1, 0), "the stage of a task must be a whole number of at least 0, found -1"),
        (("forward", 0, 1.0), "the microbatch of a task must be a whole number of at least 0, found 1.0"),
        (("forward", True, 0), "the stage of a task must be a whole number of at least 0, found True"),
        (("Forward!", 0, 0), "the kind of a task must be a name in lower case, such as 'forward', found 'Forward!'"),
        ((0, 1, TaskType.FWD), r"found 0; write Task\(kind, stage, microbatch\) or Task.make\(stage_id"),
    ],
)
def test_a_task_of_wrong_parts_is_an_error(arguments: tuple[str, int, int], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        Task(*arguments)


def test_placements() -> None:
    assert str(Placement.linear(3)) == "0 1 2"
    looped = Placement.looped(2, 3)
    assert str(looped) == "0 1 0 1 0 1"
    assert (looped.stages, looped.meshes, looped[3], looped.stages_of(1)) == (6, 2, 1, (1, 3, 5))
    both_ways = Placement.of((0, 1), [1, 0])
    assert str(both_ways) == "0+1 1+0"
    assert both_ways.stages_of(0) == (0, 1)


@pytest.mark.parametrize(
    ("meshes", "message"),
    [
        ((), "a placement must have at least one stage"),
        ((0, 2), "mesh 1 holds no stage, but mesh 2 does"),
        ((0, -1), "the mesh of stage 1 must be a whole number of at least 0, found -1"),
        ((0, (1, 1)), r"stage 1 must be placed on one mesh or on several distinct ones, found \(1, 1\)"),
    ],
)
def test_a_placement_with_holes_is_an_error(meshes: tuple[int, ...], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        Placement.of(*meshes)


def test_dependences_follow_the_pipeline() -> None:
    schedule = Schedule.parse("schedule: split\nplacement: 0 1\nmesh 0: 0F0 0I0 0W0\nmesh 1: 1F0 1B0")
    assert schedule.dependences(Task("forward", 0, 0)) == ()
    assert schedule.dependences(Task("forward", 1, 0)) == (Task("forward", 0, 0),)
    assert schedule.dependences(Task("input_grad", 0, 0)) == (Task("forward", 0, 0), Task("backward", 1, 0))
    assert schedule.dependences(Task("weight_grad", 0, 0)) == (Task("input_grad", 0, 0),)
    with pytest.raises(ScheduleError, match=r"split has no task B\(stage 0, mb 0\)"):
        schedule.dependences(Task("backward", 0, 0))


def test_a_schedule_counts_and_iterates() -> None:
    schedule = gpipe(2, 3, chunks=2)
    assert (schedule.meshes, schedule.stages, schedule.microbatches) == (2, 4, 3)
    assert len(list(schedule)) == 2 * 4 * 3
    assert hash(schedule) == hash(gpipe(2, 3, chunks=2))


def test_fused_tasks_are_one_cell() -> None:
    forward, backward, last = Task("forward", 0, 1), Task("backward", 0, 0), Task("backward", 0, 1)
    rows = [[Task("forward", 0, 0), (forward, backward), last]]
    schedule = Schedule.of("fused", Placement.linear(1), rows)
    assert schedule.orders == ((Task("forward", 0, 0), forward, backward, last),)
    assert schedule.cells == (((Task("forward", 0, 0),), (forward, backward), (last,)),)
    with pytest.raises(ScheduleError, match=r"fused group 0F1\+0B1 must be two or more neighbours"):
        Schedule("fused", schedule.placement, schedule.orders, frozenset([(forward, last)]))


def test_a_users_kind_brings_its_needs() -> None:
    kinds = tuple(map(Kind.parse, ("offload: forward", "reload: offload", "backward: forward ?reload backward@+1")))
    assert kinds[2] == Kind("backward", (Need(("forward",)), Need(("reload",), optional=True), Need(("backward",), 1)))
    words = ("forward", "offload", "reload", "backward")
    schedule = Schedule.of("host", Placement.linear(1), [[Task(word, 0, 0) for word in words]], kinds)
    check(schedule)
    assert Schedule.parse(str(schedule)) == schedule
    assert Task("reload", 0, 0) in schedule.dependences(Task("backward", 0, 0))


@pytest.mark.parametrize("text", ["Offload: forward", "offload", "offload: forward@1", "offload: a|", "offload: ?"])
def test_a_kind_that_cannot_be_read_is_an_error(text: str) -> None:
    with pytest.raises(ScheduleError, match="cannot read"):
        Kind.parse(text)


@pytest.mark.parametrize("name", ["", " a", "a\nb", "größe"])
def test_a_name_that_does_not_print_is_an_error(name: str) -> None:
    with pytest.raises(ScheduleError, match="must be printable ASCII on one line"):
        Schedule(name, Placement.linear(1), ((),))


def test_there_is_one_order_per_mesh() -> None:
    with pytest.raises(ScheduleError, match="the placement names 2 meshes, but there are 1 orders"):
        Schedule("short", Placement.linear(2), ((),))


def test_a_kind_of_wrong_parts_is_an_error() -> None:
    with pytest.raises(ScheduleError, match="must be a name in lower case, such as 'offload', found 'Off'"):
        Kind("Off")
    with pytest.raises(ScheduleError, match="cannot read need"):
        Kind("offload", (Need(()),))


def test_placements_down_and_up() -> None:
    assert str(Placement.waves(3, 2)) == "0 1 2 2 1 0"
    assert str(Placement.waves(2, 4)) == "0 1 1 0 0 1 1 0"


def test_a_slice_is_part_of_a_task() -> None:
    task = Task("backward", 2, 5, slice=1)
    assert (str(task), task.words) == ("2B5.1", "B(stage 2, mb 5, slice 1)")
    with pytest.raises(ScheduleError, match="the slice of a task must be a whole number of at least 0, found -1"):
        Task("forward", 0, 0, -1)


@pytest.mark.parametrize(
    "text",
    [
        "evict: forward; uses copy_out; here -1; time 0.5",
        "reload: offload|evict ?forward~-1; uses up copy_in; here +0.25; host -0.25",
        "backward: forward@-2~+1",
        "side:; time 2.5",
        "evict: forward; uses net; here +1; peer -1; on peer",
        "optimizer: backward|weight_grad@+1#all forward#-2~+1; on any; time forward backward",
        "again: forward; makes activation; holds input",
    ],
)
def test_what_a_kind_does_round_trips(text: str) -> None:
    kind = Kind.parse(text)
    assert Kind.parse(str(kind)) == kind
    assert str(kind) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("evict: forward; uses", "cannot read 'uses' of kind evict: expected 'uses NAME ...', 'here NUMBER', 'peer"),
        ("evict: forward; track copy", "cannot read 'track copy' of kind evict: expected 'uses NAME ...', 'here NUM"),
        ("evict: forward; here 1; here 2", "cannot read 'here 2' of kind evict"),
        ("evict: forward; here x", "cannot read here 'x': expected a number"),
        ("evict: forward; host nan", "the memory of evict must be a number for each pool, found host nan"),
        ("evict: ?forward; peer -1", "evict takes memory from a peer: the first that it needs must be one task there"),
        (
            "evict: forward#all; peer -1",
            "evict takes memory from a peer: the first that it needs must be one task there",
        ),
        ("evict: forward; on home", "cannot read 'on home' of kind evict: expected 'uses NAME ...', 'here NUMBER', "),
        ("evict: forward; holds all", "evict: expected one of activation, rest, input, found 'all'"),
        ("evict: forward; time 0", "the time of evict must be a positive number, found 0.0"),
        ("evict: forward; uses Copy", "must be a name in lower case, such as 'offload', found 'Copy'"),
        ("evict: forward; uses net net", "evict must use one resource or several, each once, found ('net', 'net')"),
        (
            "evict: forward#0",
            "cannot read need 'forward#0': expected 'kind', 'kind|kind', 'kind@+1', 'kind#-1', 'kind#a",
        ),
    ],
)
def test_what_a_kind_cannot_do(text: str, message: str) -> None:
    with pytest.raises(ScheduleError) as error:
        Kind.parse(text)
    assert message in str(error.value)


def test_tasks_that_are_skipped_are_text() -> None:
    text = "schedule: x\nplacement: 0\nskipped: 0W0 0W1.1 0W2\nmesh 0: 0F0 0F0.1 0I0.1 0I0"
    with pytest.raises(ScheduleError, match=r"W\(stage 0, mb 0, slice 1\) is missing"):
        Schedule.parse(text)
    whole = Schedule.parse(text.replace("0W0 0W1.1 0W2", "0W*"))
    assert whole.skipped == {Task("weight_grad", 0, 0), Task("weight_grad", 0, 0, 1)}
    assert "skipped: 0W*\n" in str(whole)
    with pytest.raises(ScheduleError, match=r"line 3: cannot read '0W\?'"):
        Schedule.parse(text.replace("0W1.1", "0W?"))
