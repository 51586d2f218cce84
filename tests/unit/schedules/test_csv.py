"""PyTorch's tables: what they look like, that they round-trip, and what is said about those that are wrong."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.schedules.library import Made, schedules

from jaxpp import schedules as S
from jaxpp.schedules.engine.merged_order import merged_order
from jaxpp.schedules.library.classic import gpipe
from jaxpp.schedules.rewrites.tasks import freeze, insert


def test_a_table_without_communication() -> None:
    schedule = S.make("1f1b", meshes=2, microbatches=2)
    text = "0F0,0F1,,0B0,,0B1\n,1F0,1B0,1F1,1B1,\n"
    assert schedule.to_csv() == text
    assert S.Schedule.from_csv(text, name="1f1b") == schedule
    assert (
        S.Schedule.from_csv(text.replace("\n", "\r\n").replace("0F1", ' "0F1"').replace(' "', '"') + "\n,,\n", "1f1b")
        == schedule
    )


def test_a_table_with_communication() -> None:
    text = "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n1RECV_F0,1RECV_F1,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n"
    schedule = S.make("1f1b", meshes=2, microbatches=2)
    assert schedule.to_csv(communicate=True) == text
    assert S.Schedule.from_csv(text, "1f1b") == schedule
    sharded = text.replace("0F0,", "0UNSHARD,0F0,").replace("0B1\n", "0B1,0RESHARD,0REDUCE_GRAD\n")
    assert S.Schedule.from_csv(sharded, "1f1b") == schedule
    assert S.Schedule.from_csv("0UNSHARD,0F0,0F1,,0B0,0B1,0REDUCE_GRAD\n", "gpipe") == gpipe(1, 2)


def test_fused_cells_and_rows_of_any_length() -> None:
    text = "0F0,(0F1; 0B0)OVERLAP_F_B,0B1,,,\n,1F0,1B0,1F1,1B1"
    schedule = S.Schedule.from_csv(text)
    assert schedule.cells[0][1] == (S.Task("forward", 0, 1), S.Task("backward", 0, 0))
    assert S.Schedule.from_csv(schedule.to_csv()) == schedule


@settings(deadline=None, max_examples=120)
@given(schedules(), st.booleans())
def test_any_schedule_of_the_library_round_trips(made: Made, communicate: bool) -> None:
    schedule = made.schedule
    if schedule.placement.after:
        with pytest.raises(S.ScheduleError, match=r"^a table says nothing of stages that are a graph"):
            schedule.to_csv(communicate)
        return
    text = schedule.to_csv(communicate)
    kinds = schedule.kinds  # a table has no place for their rules
    assert S.Schedule.from_csv(text, schedule.name, kinds=kinds) == schedule
    assert S.Schedule.from_csv(text, schedule.name, kinds=kinds, placement=schedule.placement) == schedule
    assert bool(kinds) == (schedule.name == "po-f" and 2 * made.options["group"] <= made.meshes + 1)
    assert ("SEND" in text) == (communicate and bool(schedule.graph.transfers))


def test_what_moves_to_a_peer_has_no_other_cell_that_sends() -> None:
    schedule = S.make("bpipe", meshes=4, microbatches=4)
    text = schedule.to_csv(communicate=True)
    assert "0evict1" in text
    assert text.count("SEND") == len(schedule.graph.transfers)
    assert S.Schedule.from_csv(text, "bpipe") == schedule


def test_kinds_round_trip() -> None:
    copied = S.offload(S.make("1f1b", meshes=3, microbatches=6))
    assert S.Schedule.from_csv(copied.to_csv(), copied.name) == copied
    log = insert(copied, S.Operation.parse("log: forward"), 0, after="forward")
    assert S.Schedule.from_csv(log.to_csv(communicate=True), log.name, kinds=log.kinds) == log
    with pytest.raises(S.ScheduleError, match="for which a table has no cells that send and receive"):
        S.parse("schedule: x\nplacement: 0+1\nmesh 0: 0F0\nmesh 1: 0B0").to_csv(communicate=True)


def test_what_is_skipped_is_said_by_the_reader() -> None:
    frozen = freeze(S.make("zb-h1", meshes=2, microbatches=3), 0)
    text = frozen.to_csv()
    assert "0W" not in text
    assert S.Schedule.from_csv(text, frozen.name, skipped=frozen.skipped) == frozen
    with pytest.raises(S.ScheduleError, match=r"^W\(stage 0, mb 0\) is missing: mesh 0 should run it$"):
        S.Schedule.from_csv(text)


GOOD = "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the table is empty: expected a row of tasks for each rank"),
        ("\n,,\n", "the table is empty: expected a row of tasks for each rank"),
        ("0F0,0B0\n\n1F0,1B0", "row 2 has no task: expected a row of tasks for each rank"),
        ("0F0,2W3xyz,0B0", "row 1 (mesh 0), column 2: cannot read '2W3xyz': a cell is <stage><op><microbatch>, like"),
        ("0F0\n1F0,,1X0", "row 2 (mesh 1), column 3: cannot read '1X0'"),
        ("0F0,0SEND_F", "row 1 (mesh 0), column 2: cannot read '0SEND_F'"),
        ("0F0,0B", "row 1 (mesh 0), column 2: cannot read '0B'"),
        ("0F0 0B0", "row 1 (mesh 0), column 1: cannot read '0F0 0B0'"),
        ("0F٣", "row 1 (mesh 0), column 1: cannot read '0F٣'"),
        ("0F0,(0F1;0B0", "row 1 (mesh 0), column 2: cannot read '(0F1;0B0'"),
        ("0F0,(0B0)OVERLAP_F_B", "row 1 (mesh 0), column 2: cannot read '(0B0)OVERLAP_F_B'"),
        ("0F0,(0F1;0SEND_F0)OVERLAP_F_B", "row 1 (mesh 0), column 2: cannot read '(0F1;0SEND_F0)OVERLAP_F_B'"),
        ("0F0,9999999999B0", "row 1 (mesh 0), column 2: cannot read '9999999999B0'"),
        ('0F0,"0B0', "not a table of comma-separated values: unexpected end of data"),
        ("0F0,1000000F0", "stage 1 has no task, but stage 1000000 has: number the stages from 0"),
        ("0F0,,0F0,0B0", "row 1 (mesh 0), column 3: mesh 0 position 1: F(stage 0, mb 0) is there twice, first on mesh"),
        (",0B0,0F0", "row 1 (mesh 0), column 2: mesh 0 position 0: B(stage 0, mb 0) needs F(stage 0, mb 0), which co"),
        ("0F0,0log0,0B0", "row 1 (mesh 0), column 2: mesh 0 position 1: log(stage 0, mb 0) is of an unknown kind"),
        ("0F0,0F1,0B0", "B(stage 0, mb 1) is missing: mesh 0 should run it"),
        (GOOD.replace("0SEND_F0,", ""), "row 1 (mesh 0): '0SEND_F0' is missing"),
        (GOOD.replace("1RECV_F0,", "1RECV_F0,1RECV_F0,"), "row 2 (mesh 1), column 2: '1RECV_F0' is there twice, first"),
        (GOOD.replace("0B0", "0B0,0SEND_B0"), "row 1 (mesh 0), column 5: '0SEND_B0' moves nothing from one mesh to an"),
        (GOOD.replace("0F0,0SEND_F0", "0SEND_F0,0F0"), "column 1: '0SEND_F0' comes before 0F0, in column 2"),
        (GOOD.replace("0RECV_B0,0B0", "0B0,0RECV_B0"), "column 3: '0B0' needs '0RECV_B0', which comes later, in colum"),
    ],
)
def test_a_table_that_is_wrong(text: str, message: str) -> None:
    with pytest.raises(S.ScheduleError) as error:
        S.Schedule.from_csv(text)
    assert message in str(error.value)


def test_a_placement_that_does_not_fit() -> None:
    with pytest.raises(S.ScheduleError, match="csv: the placement names 2 meshes, but there are 1 orders"):
        S.Schedule.from_csv("0F0,0B0", placement=S.Placement.linear(2))


def reads_or_fails_cleanly(text: str) -> None:
    try:
        schedule = S.Schedule.from_csv(text)
    except S.ScheduleError:
        return
    assert S.Schedule.from_csv(schedule.to_csv()) == schedule
    merged_order(schedule)


@settings(deadline=None, max_examples=300)
@given(st.text(alphabet="0123FBIWSENDRCV_;,()\"' \n\r\x00.offload", max_size=60) | st.text(max_size=40))
def test_any_text_is_a_table_or_a_schedule_error(text: str) -> None:
    reads_or_fails_cleanly(text)


def test_tables_with_random_mistakes_are_read_or_refused() -> None:
    generator = random.Random(0)
    texts = [
        S.make("dualpipe-v", meshes=2, microbatches=4, fused=True).to_csv(),
        S.make("zb-h1", meshes=3, microbatches=4).to_csv(communicate=True),
        S.make("seq1f1b", meshes=2, microbatches=2).to_csv(communicate=True),
    ]
    for _ in range(1500):
        cells = list(generator.choice(texts))
        for _ in range(generator.randint(1, 3)):
            at = generator.randrange(len(cells))
            other = generator.randrange(len(cells))
            choice = generator.randrange(4)
            if choice == 0:
                cells[at] = generator.choice("0123FBIW,\n;()_.")
            elif choice == 1:
                del cells[at]
            elif choice == 2:
                cells[at], cells[other] = cells[other], cells[at]
            else:
                cells.insert(at, generator.choice('0123FBIW,\n;()_."'))
        reads_or_fails_cleanly("".join(cells))


def test_a_users_kind_on_a_peer_is_no_home_of_its_stage() -> None:
    kind = S.Kind.parse("spy: forward; on any")
    schedule = S.Schedule.from_csv("0F0,,0B0\n1F0,0spy0,1B0", kinds=iter([kind]))
    assert str(schedule.placement) == "0 1"
    assert schedule.kinds == (kind,)
