"""docs/passes.md is what the docstrings of the passes say; docs/tour.md shows what the passes make of its example."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from jaxlib.mlir import ir

from jaxpp.hlo_passes import PIPELINES
from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.loop.inline_calls import InlineCalls
from jaxpp.tools import docs


@dataclass(frozen=True)
class Example(Pass):
    """Shows what a docstring becomes. At length.

    Options:
        first: the first of them,
            which has two lines.
        second_one: another.

    More text.
    """

    first: int = 3
    second_one: str = ""

    def run(self, module: ir.Module) -> None:
        """Do nothing."""


TOUR = """\
```python
from types import SimpleNamespace

weights = batch = None
text = "func.func public @main(%a: tensor<f32>) -> tensor<f32> {{ {} return %b : tensor<f32> }}"
lowered = SimpleNamespace(as_text=lambda: text.format("%b = stablehlo.add %a, %a : tensor<f32>"))
step = SimpleNamespace(lower=lambda *arguments: lowered)
```
"""


def test_the_pages_are_current(capsys: pytest.CaptureFixture[str]) -> None:
    assert docs.main(["--check"]) == 0, capsys.readouterr().err


def test_a_pass_becomes_a_section() -> None:
    page = docs.passes_page({"example": Example})
    assert "- [`example`](#example): Shows what a docstring becomes.\n" in page
    assert page.endswith(
        """\
## `example`

Shows what a docstring becomes. At length.

More text.

| option | type | default | |
|---|---|---|---|
| `first` | int | `3` | the first of them, which has two lines. |
| `second-one` | str | `""` | another. |
"""
    )


def test_every_option_is_documented() -> None:
    @dataclass(frozen=True)
    class More(Example):
        """Has a third option.

        Options:
            first: documented.
        """

    with pytest.raises(ValueError, match="more: its docstring's options are first, its fields first, second_one"):
        docs.passes_page({"more": More})


def test_an_excerpt_has_the_chosen_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PIPELINES, "mpmd", lambda: (InlineCalls(),))
    marker = "<!-- after inline-calls: public|return -->\n"
    page = docs.tour_page(f"{TOUR}{marker}\nText.\n{marker}\n```mlir\nolder\n```\n")
    excerpt = """
```mlir
  func.func public @main(%arg0: tensor<f32>) -> tensor<f32> {
    ...
    return %0
```
"""
    assert page == f"{TOUR}{marker}{excerpt}\nText.\n{marker}{excerpt}"
    assert docs.tour_page(page) == page


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ("<!-- after outline: x -->\n", "`after outline`: no pass of the pipeline has that name"),
        ("<!-- after lowering: recv -->\n", "`after lowering`: no line matches `recv`"),
        (
            "\n## 1. A\n<!-- after inline-calls: return -->\n`%0`, `%7#1`\n",
            "`1. A`: the text names %7#1, which no excerpt of the section has",
        ),
    ],
)
def test_an_excerpt_that_finds_nothing_is_refused(marker: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PIPELINES, "mpmd", lambda: (InlineCalls(),))
    with pytest.raises(ValueError, match=message):
        docs.tour_page(TOUR + marker)


def test_stale_pages_are_found_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tour = Path(docs.__file__).resolve().parents[1] / "docs" / "tour.md"
    current = tour.read_text(encoding="utf-8")
    (tmp_path / "tour.md").write_text(current.replace("stablehlo.cosine", "stablehlo.tan"), encoding="utf-8")
    assert docs.main(["--check"], folder=tmp_path) == 1
    assert capsys.readouterr().err == "passes.md is stale: run `make docs`\ntour.md is stale: run `make docs`\n"
    assert docs.main([], folder=tmp_path) == 0
    assert (tmp_path / "tour.md").read_text(encoding="utf-8") == current
    assert docs.main(["--check"], folder=tmp_path) == 0
