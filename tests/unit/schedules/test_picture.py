"""Pictures: what is where, and how large the files are."""

import itertools
import re
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from unit.schedules.library import Made, schedules

from jaxpp import schedules as S
from jaxpp.schedules.engine.report import Report
from jaxpp.schedules.library.classic import gpipe
from jaxpp.schedules.plot import picture
from jaxpp.schedules.plot.scene import Box, Frame, Scene, amount, level_colour, text_colour
from jaxpp.schedules.rewrites.tasks import insert


def report(name: str = "1f1b", meshes: int = 2, microbatches: int = 3, **options: object) -> Report:
    return S.simulate(S.make(name, meshes=meshes, microbatches=microbatches, **options))


def place(box: Box) -> tuple[str, int, float, float, float, float]:
    return str(box.task), box.mesh, box.start, box.end, box.bottom, box.top


def test_a_box_for_each_task() -> None:
    boxes = Scene(report(microbatches=2)).boxes
    assert [place(box) for box in boxes] == [
        ("0F0", 0, 0, 1, 0, 1),
        ("0F1", 0, 1, 2, 0, 1),
        ("0B0", 0, 4, 6, 0, 1),
        ("0B1", 0, 7, 9, 0, 1),
        ("1F0", 1, 1, 2, 0, 1),
        ("1B0", 1, 2, 4, 0, 1),
        ("1F1", 1, 4, 5, 0, 1),
        ("1B1", 1, 5, 7, 0, 1),
    ]


def test_fused_tasks_share_a_frame_one_above_the_other() -> None:
    scene = Scene(report("dualpipe-v", 1, 2, fused=True))
    (frame,) = scene.frames
    upper, lower = (box for box in scene.boxes if (box.start, box.end) == (frame.start, frame.end))
    assert (str(upper.task), upper.bottom, upper.top) == ("1F1", 0.5, 1)
    assert (str(lower.task), lower.bottom, lower.top) == ("0B0", 0, 0.5)


def test_copies_are_a_strip_below_the_tasks() -> None:
    copied = S.offload(S.make("1f1b", meshes=2, microbatches=4), ahead=1)
    scene = Scene(S.simulate(copied, S.Costs(kinds={"offload": 0.5, "reload": 0.5})))
    strips = {(box.track, box.bottom, round(box.top, 6)) for box in scene.boxes if box.track}
    assert strips == {("copy_in", 0, 0.11), ("copy_out", 0.11, 0.22)}
    assert {round(box.bottom, 6) for box in scene.boxes if not box.track} == {0.22}
    assert list(scene.kinds) == ["forward", "backward", "offload", "reload"]


def test_colours_tell_kinds_apart_and_shades_microbatches() -> None:
    scene = Scene(report("zb-h1", 2, 5))
    colours = {(box.task.kind, box.task.microbatch): scene.colour(box) for box in scene.boxes}
    assert len({colours[kind, mb] for kind in scene.kinds for mb in range(4)}) == 12
    assert colours["forward", 4] == colours["forward", 0] == scene.kinds["forward"]
    assert {scene.plain_colour(box) for box in scene.boxes} == set(scene.kinds.values())
    log = insert(gpipe(1, 1), S.Operation.parse("log: forward; time 1"), 0, after="forward")
    assert list(Scene(S.simulate(log)).kinds) == ["forward", "backward", "log"]
    assert text_colour("#ffffff") == "#000000"
    assert text_colour("#0072b2") == "#ffffff"


def test_runs_are_the_times_without_a_bubble() -> None:
    scene = Scene(report("gpipe", 2, 2))
    assert [(frame.mesh, frame.start, frame.end) for frame, _ in scene.runs] == [(0, 0, 2), (0, 5, 9), (1, 1, 7)]
    forward, backward, mixed = (colour for _, colour in scene.runs)
    assert (forward, backward) == tuple(scene.kinds.values())
    channels = [[int(colour[at : at + 2], 16) for at in (1, 3, 5)] for colour in (forward, backward, mixed)]
    assert channels[2] == [round((2 * one + 4 * other) / 6) for one, other in zip(*channels[:2], strict=True)]


def test_memory_is_darker_the_more_there_is() -> None:
    scene = Scene(report("1f1b", 4, 8))
    assert len({level_colour(each) for each in scene.levels if each.mesh == 0}) > 3
    full, rest = (Frame(0, 0.0, 1.0, 0.0, share) for share in (1.0, 0.1))
    assert level_colour(full) < level_colour(rest), "the darker colour, in hexadecimal"
    for mesh, (times, amounts) in enumerate(scene.report.memory.curves):
        mine = [each for each in scene.levels if each.mesh == mesh]
        heights = [amount / scene.highest for amount in amounts]
        assert [(each.start, each.top) for each in mine] == list(zip(times, heights, strict=True))
        assert mine[-1].end == scene.report.makespan


def test_titles_and_amounts() -> None:
    assert Scene(report()).title == "1f1b: 2 meshes, 3 microbatches; makespan 12 units, bubble 25.0 %"
    single = S.simulate(gpipe(1, 1, chunks=2), S.Costs(unit="s", activation_bytes=1))
    assert Scene(single).title == "gpipe: 1 mesh, 1 microbatch, 2 stages; makespan 3 s, bubble 0.0 %"
    assert Scene(single).memory_title == "bytes of activations; peaks at the right"
    bytes_, shares = single.memory, report().memory
    assert [amount(value, bytes_) for value in (0, 999, 1e3, 1.5e6, 2e9, 5e13)] == [
        "0 B",
        "999 B",
        "1 kB",
        "1.5 MB",
        "2 GB",
        "50 TB",
    ]
    assert amount(2 / 3, shares) == "0.6667"


@settings(deadline=None, max_examples=60)
@given(schedules())
def test_no_two_boxes_of_a_mesh_overlap(made: Made) -> None:
    scene = Scene(S.simulate(made.schedule))
    assert Counter(box.task for box in scene.boxes) == Counter(made.schedule)
    for mesh in range(made.meshes):
        boxes = sorted((box for box in scene.boxes if box.mesh == mesh), key=lambda box: (box.start, -box.top))
        for first, second in itertools.pairwise(boxes):
            assert first.end <= second.start or first.bottom >= second.top - 1e-9
            assert 0 <= second.bottom < second.top <= 1


def test_svg_is_text_and_the_same_every_time(tmp_path: Path) -> None:
    S.draw(report("zb-v", 4, 8), tmp_path / "a.svg")
    data = (tmp_path / "a.svg").read_bytes()
    assert data == picture(report("zb-v", 4, 8), "b.svg")
    words = [element.text for element in ElementTree.fromstring(data).iter() if element.text and element.text.strip()]
    assert "zb-v: 4 meshes, 8 microbatches, 8 stages; makespan 25.5 units, bubble 5.9 %" in words
    assert {"input grad", "weight grad", "bubble", "time in units", "7", "s7"} <= set(words)
    assert words.count("s7") == 3 * 8


@pytest.mark.parametrize(
    ("name", "caption"),
    [
        ("1f1b", "numbers: microbatches"),
        ("zb-v", "numbers: microbatches; s3: stage 3"),
        ("dualpipe", "numbers: microbatches; s3: stage 3; framed: one fused task"),
        ("seq1f1b-i", "numbers: microbatches; 3.1: microbatch 3, slice 1; s3: stage 3"),
    ],
)
def test_a_caption_says_what_is_written_on_the_tasks(name: str, caption: str) -> None:
    assert f">{caption}<" in picture(report(name, 4, 8), "a.svg").decode()


def test_a_caption_says_nothing_of_words_that_had_no_room() -> None:
    data = picture(report("stp", 8, 256), "a.svg").decode()
    assert ">framed: one fused task<" in data
    assert "numbers: " not in data


def test_a_long_run_is_few_shapes() -> None:
    run = report("zb-h1", 8, 256)
    data = picture(run, "a.svg")
    assert data.count(b"<path") < 200
    assert len(data) < 1_000_000
    scene = Scene(run)
    assert [shade in data.decode() for shade in scene.shades["forward"]] == [True, False, False, False], "plain colours"


def test_every_task_of_a_short_run_has_its_number() -> None:
    run = report("dualpipe", 8, 20)
    words = re.findall(r">(\d+)( s\d)?</text>", picture(run, "a.svg").decode())
    assert len([stage for _, stage in words if stage]) == 2 * len(Scene(run).frames), "beside it in half a row"
    for number in range(20):
        shown, tasks = words.count((str(number), "")), [task for task in run.schedule if task.microbatch == number]
        assert shown + len([found for found, stage in words if stage and found == str(number)]) >= len(tasks)


def test_copies_that_take_no_time_are_drawn() -> None:
    run = S.simulate(S.offload(S.make("1f1b", meshes=2, microbatches=3)))
    assert ">offload</text>" in picture(run, "a.svg").decode()


def test_a_schedule_is_drawn_as_it_is_simulated_without_costs() -> None:
    schedule = S.make("zb-h1", meshes=3, microbatches=4)
    assert picture(schedule, "a.svg") == picture(S.simulate(schedule), "a.svg")
    assert picture([schedule, S.simulate(schedule)], "a.svg") == picture([schedule, schedule], "a.svg")


def test_png(tmp_path: Path) -> None:
    S.draw(S.simulate(gpipe(1, 1)), tmp_path / "a.PNG")
    assert (tmp_path / "a.PNG").read_bytes().startswith(b"\x89PNG")


def test_a_name_that_is_no_picture() -> None:
    with pytest.raises(S.ScheduleError, match=r"^a picture's name must end in \.svg, \.png or \.html, found 'a\.pdf'$"):
        S.draw(report(), "a.pdf")


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delitem(sys.modules, "jaxpp.schedules.plot.chart", raising=False)
    for known in [each for each in sys.modules if each.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, known)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(S.ScheduleError, match=r"^drawing needs matplotlib: pip install 'jaxpp\[plot\]'$"):
        S.draw(report(), tmp_path / "a.svg")
    assert not (tmp_path / "a.svg").exists()
    S.draw(report(), tmp_path / "a.html")


def test_a_picture_without_memory() -> None:
    run = S.make("1f1b", meshes=2, microbatches=2)
    with_memory, without = (picture(run, "x.svg", memory=memory).decode() for memory in (True, False))
    assert "peaks at the right" in with_memory
    assert "peaks at the right" not in without
    assert "time in units" in without
