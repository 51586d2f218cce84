"""The text form: what it looks like, that it round-trips, and what is said about text that is no schedule."""

import random
from textwrap import dedent

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.schedules.library import Made, schedules

from jaxpp import schedules as S
from jaxpp.schedules.engine.merged_order import merged_order
from jaxpp.schedules.library.classic import gpipe, one_f_one_b


def test_the_grid_shows_rank_by_time() -> None:
    assert str(S.make("1f1b", meshes=2, microbatches=3)) == dedent("""\
        schedule: 1f1b
        placement: 0 1
        mesh 0: 0F0 0F1 .   0B0 0F2 0B1 .   0B2
        mesh 1: .   1F0 1B0 1F1 1B1 1F2 1B2""")


def test_the_grid_of_a_looped_schedule() -> None:
    assert str(gpipe(2, 2, chunks=2)) == dedent("""\
        schedule: gpipe
        placement: 0 1 0 1
        mesh 0: 0F0 0F1 2F0 2F1 .   .   2B0 2B1 0B0 0B1
        mesh 1: .   1F0 1F1 3F0 3F1 3B0 3B1 1B0 1B1""")


def test_fused_cells_kinds_and_two_homes_round_trip() -> None:
    text = dedent("""\
        schedule: by hand
        placement: 0+1 1
        kind offload: forward
        mesh 0: 0F0 0offload0 0F1 .       0I0     0W0
        mesh 1: .   1F0       .   1F1+1B0 1B1+0B1""")
    assert str(S.parse(text)) == text


def test_layout_is_for_the_eye_alone() -> None:
    text = "\n  schedule: 1f1b\n\nplacement:  0 1\n mesh 0:0F0 0B0\n\tmesh  1:  . . 1F0 1B0 ...\n".replace("...", ".")
    assert S.parse(text) == one_f_one_b(2, 1)


def test_what_never_runs_is_printed_too() -> None:
    deadlock = S.Schedule.of("stuck", S.Placement.linear(1), [[S.Task("backward", 0, 0), S.Task("forward", 0, 0)]])
    assert str(deadlock).endswith("mesh 0: 0B0 0F0")


@settings(deadline=None, max_examples=60)
@given(schedules())
def test_any_schedule_of_the_library_round_trips(made: Made) -> None:
    schedule = made.schedule
    parsed = S.parse(str(schedule))
    assert parsed == schedule
    assert str(parsed) == str(schedule)


HEAD = "schedule: x\nplacement: 0 1\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the text of a schedule needs a line 'schedule: ...'"),
        ("schedule: x", "the text of a schedule needs a line 'placement: ...'"),
        (
            "schedule: \nplacement: 0\nmesh 0: 0F0",
            "the name of a schedule must be printable ASCII on one line, found ''",
        ),
        ("schedule: x\nschedule: y", "line 2: expected 'schedule:', 'placement:' or, behind it, 'after:' (each once)"),
        ("schedule: x\nplacement: 0 x", "line 2: stage 1 must have a mesh number, or several joined by '+', found 'x'"),
        (
            "schedule: x\nplacement: 0 1 0*1\nmesh 0: 0F0 2F0\nmesh 1: 1F0 2F0",
            "line 2: stage 2 must have a mesh number, or several joined by '+', found '0*1'",
        ),
        ("schedule: x\nplacement: 0 2", "line 2: mesh 1 holds no stage, but mesh 2 does: number the meshes from 0"),
        (HEAD + "kind B: forward", "line 3: cannot read kind 'B: forward'"),
        (HEAD + "mesh 1: 1F0", "line 3: expected the row of mesh 0, found that of mesh 1"),
        (HEAD + "mesh 0: 0F0", "x: the placement names 2 meshes, but there are 1 orders"),
        (HEAD + "rank 0: 0F0", "found 'rank 0: 0F0'"),
        ("schedule: ☃", "line 1: text must be ASCII, found '☃'"),
    ],
)
def test_text_that_is_no_schedule(text: str, message: str) -> None:
    with pytest.raises(S.ScheduleError) as error:
        S.parse(text)
    assert message in str(error.value)


def test_a_torn_cell_is_marked() -> None:
    with pytest.raises(S.ScheduleError) as error:
        S.parse(HEAD + "mesh 0: 0F0 . 0W3xyz 0B0\nmesh 1: 1F0 1B0")
    assert str(error.value) == dedent("""\
        line 3: cannot read '0W3xyz': a cell is <stage><kind><microbatch>, like 0F3, 2W1, or fused 0F3+1B2
          mesh 0: 0F0 . 0W3xyz 0B0
                        ^^^^^^""")


def test_the_mark_stays_in_view_on_a_long_row() -> None:
    cells = [f"0F{i}" for i in range(1000)]
    cells[500] = "0F"
    with pytest.raises(S.ScheduleError) as error:
        S.parse(f"schedule: x\nplacement: 0\nmesh 0: {' '.join(cells)}")
    _, row, mark = str(error.value).split("\n")
    assert row.startswith("  mesh 0: ... 0F492 ")
    assert row.endswith(" 0F507 ...")
    assert row[mark.index("^") : mark.rindex("^") + 1] == "0F"


def test_a_schedule_that_is_wrong_is_marked_in_its_row() -> None:
    with pytest.raises(S.ScheduleError) as error:
        S.parse(HEAD + "mesh 0: 0F0 . . 0B0 1B0\nmesh 1: . 1F0 1B0")
    assert str(error.value) == dedent("""\
        mesh 0 position 2: B(stage 1, mb 0) does not belong here: mesh 0 holds stage 0
          mesh 0: 0F0 0B0 1B0
                          ^^^""")
    assert error.value.where == (0, 2)


@settings(deadline=None, max_examples=150)
@given(st.text(max_size=60))
def test_any_text_parses_or_is_a_schedule_error(text: str) -> None:
    for fuzzed in (text, f"{HEAD}mesh 0: {text}", f"schedule: x\nplacement: {text}", f"{HEAD}kind {text}"):
        parses_or_fails_cleanly(fuzzed)


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 2**32), schedules(meshes=3, microbatches=3))
def test_any_edit_of_a_schedule_parses_or_is_a_schedule_error(seed: int, made: Made) -> None:
    source = random.Random(seed)
    letters = list(str(made.schedule))
    for _ in range(source.randint(1, 4)):
        at = source.randrange(len(letters) or 1)
        cut = source.choice((0, 1, 1, 4, 30))
        letters[at : at + cut] = source.choice(
            ("", "0", "9" * 9, "9" * 10, "+", ".", "B", "W", " ", "\n", "0F0 ", "mesh 1:")
        )
    parses_or_fails_cleanly("".join(letters))


def parses_or_fails_cleanly(text: str) -> None:
    try:
        schedule = S.parse(text)
    except S.ScheduleError:
        return
    assert S.parse(str(schedule)) == schedule
    merged_order(schedule)


def test_64_meshes_by_512_microbatches_print_and_parse() -> None:
    schedule = one_f_one_b(64, 512)
    text = str(schedule)
    assert S.parse(text) == schedule
    assert len(text) < 600_000


@pytest.mark.parametrize("cell", ["0F999999999", "0F0.999999999"])
def test_a_star_is_never_more_than_what_is_there(cell: str) -> None:
    with pytest.raises(S.ScheduleError, match="is missing"):
        S.parse(f"schedule: a\nplacement: 0\nskipped: 0W*\nmesh 0: 0F0 {cell}")


def test_a_task_that_needs_all_of_very_many_microbatches_is_refused_at_once() -> None:
    text = "schedule: x\nplacement: 0\nmesh 0: 0F999999999 0B999999999 0optimizer0"
    with pytest.raises(S.ScheduleError, match=r"^F\(stage 0, mb 0\) is missing: mesh 0 should run it"):
        S.Schedule.parse(text)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("placement: 0 999999999\nmesh 0: 0F0", "line 2: mesh 1 holds no stage, but mesh 999999999 does"),
        ("placement: 0\nmesh 999999999: 0F0", "line 3: expected the row of mesh 0, found that of mesh 999999999"),
        ("placement: 0\nmesh 0: 0F0 999999999F0", "mesh 0 position 1: F(stage 999999999, mb 0) does not belong here"),
        ("placement: 0\nmesh 0: 0F0.999999999 0optimizer0", "F(stage 0, mb 0) is missing: mesh 0 should run it"),
        ("placement: 0 0\nafter: . 999999999\nmesh 0: 0F0", "line 3: stage 1 can't come after stage 999999999"),
        (
            "placement: 0\nkind a: forward@+999999999#all forward#-999999999\nmesh 0: 0F0 0F2 0a0",
            "F(stage 0, mb 1) is missing: mesh 0 should run it",
        ),
    ],
)
def test_huge_numbers_in_a_short_grid_are_refused_at_once(lines: str, message: str) -> None:
    with pytest.raises(S.ScheduleError) as error:
        S.parse(f"schedule: x\n{lines}")
    assert str(error.value).startswith(message)


def test_what_is_left_out_must_exist() -> None:
    with pytest.raises(S.ScheduleError) as error:
        S.parse("schedule: a\nplacement: 0\nskipped: 7W3\nmesh 0: 0F0 0B0")
    assert str(error.value) == "W(stage 7, mb 3) is left out, but there is no such stage or kind of task"
