"""docs/passes.md is what the docstrings of the passes say."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass
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

    name: ClassVar[str] = "example"
    first: int = 3
    second_one: str = ""

    def run(self, module: ir.Module) -> None:
        """Do nothing."""


def test_the_page_is_current() -> None:
    assert docs.main(["--check"]) == 0, "docs/passes.md is stale: run `make docs`"


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

    with pytest.raises(ValueError, match="example: its docstring's options are first, its fields first, second_one"):
        docs.passes_page({"more": More})


def test_a_stale_page_is_found_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "passes.md"
    assert docs.main(["--check"], target=page) == 1
    assert capsys.readouterr().err == "passes.md is stale: run `make docs`\n"
    assert docs.main([], target=page) == 0
    assert docs.main(["--check"], target=page) == 0
    page.write_text(page.read_text() + "\n")
    assert docs.main(["--check"], target=page) == 1
