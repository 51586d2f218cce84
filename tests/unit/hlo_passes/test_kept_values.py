"""What a user may say of a recompute, and how it reads in the text of a pass."""

import re
from typing import Any

import pytest

from jaxpp.hlo_passes.stages.kept_values import Keep, keep_text, parse_keep

EXPECTED = "expected 'inputs', 'selective', a share of a forward's FLOPs from 0 to 1, or bytes such as '4096B'"


@pytest.mark.parametrize(
    ("recompute", "text", "keeps"),
    [
        (None, "", {}),
        ("inputs", "inputs", {None: Keep(inputs=True)}),
        ("selective", "selective", {None: Keep()}),
        (0.05, "0.05", {None: Keep(budget=0.05)}),
        (1, "1", {None: Keep(budget=1.0)}),
        ("4096B", "4096B", {None: Keep(size=4096)}),
        ("0B", "0B", {None: Keep(size=0)}),
        ({1: "1.5 MiB", 2: "4KB"}, "1:1.5MiB 2:4KB", {1: Keep(size=3 << 19), 2: Keep(size=4000)}),
        ({0: "inputs", 3: 0.5}, "0:inputs 3:0.5", {0: Keep(inputs=True), 3: Keep(budget=0.5)}),
    ],
)
def test_as_text_and_back(recompute: Any, text: str, keeps: Any) -> None:
    assert keep_text(recompute) == text
    assert parse_keep(text) == keeps


def test_single_stages_and_all_others() -> None:
    assert parse_keep("selective 2:inputs") == {None: Keep(), 2: Keep(inputs=True)}


@pytest.mark.parametrize(
    ("recompute", "error", "message"),
    [
        ("all", ValueError, f"recompute is 'all', {EXPECTED}"),
        ("4096", ValueError, f"recompute is '4096', {EXPECTED}"),
        ("4QB", ValueError, f"recompute is '4QB', {EXPECTED}"),
        (1.5, ValueError, f"recompute is 1.5, {EXPECTED}"),
        ({0: float("nan")}, ValueError, f"recompute is nan, {EXPECTED}"),
        (True, TypeError, f"recompute is True, {EXPECTED}, or a mapping from stages to these"),
        (["inputs"], TypeError, f"recompute is ['inputs'], {EXPECTED}, or a mapping from stages to these"),
        ({"0": "inputs"}, TypeError, f"recompute is {{'0': 'inputs'}}, {EXPECTED}, or a mapping from stages to these"),
    ],
)
def test_what_is_refused(recompute: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        keep_text(recompute)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nothing", f"keep is 'nothing', {EXPECTED}, for all stages or as STAGE:KEEP"),
        ("-1:inputs", f"keep is '-1:inputs', {EXPECTED}, for all stages or as STAGE:KEEP"),
        ("0:inputs 0:0.5", "keep names stage 0 twice: '0:inputs 0:0.5'"),
        ("inputs selective", "keep names all stages twice: 'inputs selective'"),
    ],
)
def test_text_that_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_keep(text)
