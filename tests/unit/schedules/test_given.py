"""What may be given as a schedule: names, names with options, files, texts, objects."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from jaxpp import schedules as S
from jaxpp.schedules.given import as_text, library_name, of_text

ZB_V = S.make("zb-v", meshes=2, microbatches=4)


def test_every_form_of_one_schedule(tmp_path: Path) -> None:
    for name in ("mine", "mine.txt", "mine.of.any.kind"):
        (tmp_path / name).write_text(str(ZB_V))
        assert S.resolve(tmp_path / name) == S.resolve(str(tmp_path / name), meshes=7) == ZB_V
    (tmp_path / "zb-v.csv").write_text(ZB_V.to_csv())
    assert S.resolve(str(tmp_path / "zb-v.csv")) == ZB_V
    assert S.resolve("zb-v", meshes=2, microbatches=4) == ZB_V
    assert S.resolve(str(ZB_V)) == S.resolve(ZB_V, meshes=7, microbatches=9) == ZB_V
    assert S.resolve(S.DualPipeV(4, 2), microbatches=4) == S.make("dualpipe-v", meshes=2, microbatches=4)


def test_the_text_of_what_was_given() -> None:
    assert as_text("zb-v", microbatches=4) == "zb-v"
    assert as_text("zb-v", microbatches=4, meshes=2) == as_text(ZB_V, microbatches=9) == str(ZB_V)
    assert as_text("any\ntext", microbatches=4) == "any\ntext"
    assert as_text("auto", microbatches=4) == "auto"
    with pytest.raises(S.ScheduleError, match="1f2b"):
        as_text("1f2b", microbatches=4)


def test_a_text_that_was_just_written_is_not_read_again_but_checked() -> None:
    mine = replace(ZB_V, name="just written")
    text = as_text(mine, microbatches=4)
    assert of_text(text) is of_text(text) is mine
    assert of_text(f"{text}\n") == S.parse(text) == mine
    wrong = replace(ZB_V, orders=tuple(order[1:] for order in ZB_V.orders))
    with pytest.raises(S.ScheduleError):
        of_text(as_text(wrong, microbatches=4))
    with pytest.raises(S.ScheduleError):
        of_text(as_text("any\ntext", microbatches=4))


def test_options_in_braces() -> None:
    sizes = {"meshes": 4, "microbatches": 8}
    assert S.resolve("gis{chunks=3 group=4}", **sizes) == S.make("gis", **sizes, chunks=3, group=4)
    assert S.resolve("gis{chunks=3}", **sizes, group=4, chunks=2) == S.make("gis", **sizes, chunks=3, group=4)
    assert S.resolve("kimi-k2{fused=true}", **sizes) == S.KimiK2(8, 4, fuse_steady_state=True).build(8)
    assert S.resolve("gpipe{placement=0,1,1,0}", meshes=2, microbatches=3).placement == S.Placement.of(0, 1, 1, 0)


def test_a_name_of_the_library_goes_before_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("1f1b").write_text(str(ZB_V))
    assert S.resolve("1f1b", meshes=2, microbatches=4).name == "1f1b"
    assert S.resolve("./1f1b") == ZB_V
    assert [library_name(word) for word in ("1f1b", "gis{chunks=2}", "./1f1b", "1f2b", str(ZB_V), ZB_V)] == [
        *("1f1b", "gis"),
        *[None] * 4,
    ]


WRONG: list[tuple[Callable[[Path], object], str]] = [
    (lambda _: "1f2b", "no schedule is named '1f2b'; did you mean '1f1b'? There are gpipe, "),
    (lambda _: "1f1b", "1f1b is a schedule of the library: it needs the numbers of meshes and microbatches"),
    (lambda _: "auto", "auto: a step that runs chooses this schedule, from what it measures; give one by name, "),
    (lambda _: "auto{chunks=2}", "auto has no options, found auto{chunks=2}: jaxpp.tune has some"),
    (lambda _: "gis{", "expected a schedule such as gis or gis{chunks=4 group=2}, found 'gis{'"),
    (lambda _: "gis{group=x}", "group must be a whole number, found 'x'"),
    (lambda path: path / "none", "none: cannot read: No such file or directory"),
    (lambda path: str(path), ": cannot read: Is a directory"),
    (lambda path: path / "empty", "empty: the file is empty; expected a schedule: a grid or a table"),
    (lambda path: path / "wrong", "wrong: line 1: expected 'schedule:', 'placement:' or, behind it, "),
    (lambda _: S.Std1F1B(4), "Std1F1B builds a schedule for a number of microbatches: give it"),
]


@pytest.mark.parametrize(("given", "message"), WRONG)
def test_what_is_no_schedule(given: Callable[[Path], object], message: str, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "wrong").write_text("hello")
    with pytest.raises(S.ScheduleError) as caught:
        S.resolve(given(tmp_path))
    assert message in str(caught.value)


def test_objects_that_are_no_schedules() -> None:
    with pytest.raises(TypeError, match=r"schedule=Std1F1B is a class; give an instance: schedule=Std1F1B\(number of"):
        S.resolve(S.Std1F1B, microbatches=4)
    with pytest.raises(TypeError, match="a name, a file or a text, found int"):
        S.resolve(4)
