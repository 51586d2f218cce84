"""Pairs of scripts in examples/: a model on one device, and the same as a pipeline."""

import difflib
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def difference(single: Path, pipelined: Path) -> str:
    """All lines below the docstrings in which two scripts differ, each with the lines beside it."""
    before, after = (_below_docstring(path) for path in (single, pipelined))
    lines = [*difflib.unified_diff(before, after, n=1, lineterm="")][2:]
    return "\n".join(line for line in lines if not line.startswith("@@"))


def shown(page: str) -> list[str]:
    """The differences that a page of docs/ shows."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    return [block.strip("\n") for block in re.findall(r"^```diff\n(.*?)^```", text, re.MULTILINE | re.DOTALL)]


def added(difference: str) -> int:
    """The number of lines that a pipeline adds or changes; empty lines do not count."""
    return sum(line.startswith("+") and bool(line[1:].strip()) for line in difference.split("\n"))


def _below_docstring(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split('"""', 2)[2].split("\n")
