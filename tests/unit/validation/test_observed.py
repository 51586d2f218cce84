"""`first_wrong` on values that are given, and records of them."""

import dataclasses
import random
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jaxpp.ir.program import TaskName
from jaxpp.validation.compare import Tolerance
from jaxpp.validation.observed import CARRIED, RESULT, Observed, first_wrong, with_noise
from jaxpp.validation.records import Record, is_record

TOLERANCE = Tolerance(1e-5)


def made(number: float, place: Any = "add", microbatch: int = 0, stage: int | None = 0, **options: Any) -> Observed:
    """Returns a value of a backward; without a stage, of an operation that names no task."""
    task = None if stage is None else TaskName("backward", stage, microbatch)
    unit = (microbatch, 0)
    options = {"behind": frozenset([unit]), "operation": f"stablehlo.{place}", "words": str(task), **options}
    return Observed(("operation", place), task, unit, np.array(number, np.float32), **options)


def names(found: Any) -> tuple[str, str] | None:
    return found and (found.task, found.operation)


def test_the_first_value_that_differs() -> None:
    right = [made(1), made(2, "multiply", line="train.py:3:1"), made(3, "tanh")]
    found = first_wrong(right, [made(1), made(-2, "multiply"), made(4, "tanh")], TOLERANCE)
    assert names(found) == ("backward of stage 0, microbatch 0", "stablehlo.multiply")
    assert found is not None
    assert found.line == "train.py:3:1"
    assert str(found) == "stablehlo.multiply differs by 4, 2 before and -2 after; allowed 2e-05"
    assert first_wrong(right, right, TOLERANCE) is None


def test_values_that_have_no_match_say_nothing() -> None:
    assert first_wrong([made(1)], [made(2, "tanh"), made(3, microbatch=1), made(4, stage=1)], TOLERANCE) is None


def test_copies_of_a_loop_match_in_any_order_and_number() -> None:
    right = [made(1), made(2), made(3)]
    assert first_wrong(right, [made(3), made(1), made(2), made(1)], TOLERANCE) is None
    assert first_wrong(right, [made(3), made(7), made(2), made(1)], TOLERANCE) is None  # a new value, and none is gone
    assert names(first_wrong(right, [made(3), made(7), made(2)], TOLERANCE)) is not None


def test_a_stage_counts_where_both_runs_know_it() -> None:
    stages = [made(1), made(2, stage=1)]
    assert first_wrong(stages, [made(2, stage=None), made(1, stage=None)], TOLERANCE) is None
    assert names(first_wrong(stages, [made(2), made(1, stage=1)], TOLERANCE)) is not None


def sums(order: list[int], wrong: float = 0.0) -> list[Observed]:
    """Returns the running sums of 1, 2, 4... in an order of microbatches."""
    found: list[Observed] = []
    total, behind = 0.0, frozenset[tuple[int, int]]()
    for microbatch in order:
        total, behind = total + 2**microbatch + wrong, behind | {(microbatch, 0)}
        found.append(made(total, microbatch=microbatch, behind=behind))
    return found


def test_sums_in_another_order_differ_on_the_way_only() -> None:
    assert first_wrong(sums([0, 1, 2]), sums([2, 0, 1]), TOLERANCE) is None
    found = first_wrong(sums([0, 1, 2]), sums([0, 2, 1], wrong=0.5), TOLERANCE)
    assert names(found) == ("backward of stage 0, microbatch 0", "stablehlo.add")


def test_a_value_of_another_microbatch_is_no_sum() -> None:
    right = [made(1), made(2, microbatch=1)]
    wrong = [made(2, behind=frozenset([(0, 0), (1, 0)])), made(2, microbatch=1)]
    assert names(first_wrong(right, wrong, TOLERANCE)) == ("backward of stage 0, microbatch 0", "stablehlo.add")


def test_an_operation_that_is_gone_is_named_by_the_value_in_its_place() -> None:
    right = [made(1, "dot"), made(3, "add", operands=(0,)), made(6, "tanh", operands=(1,))]
    wrong = [made(1, "dot"), made(2, "tanh", operands=(0,))]
    found = first_wrong(right, wrong, TOLERANCE)
    assert names(found) == ("backward of stage 0, microbatch 0", "stablehlo.add")


def test_a_carried_value_and_a_result_have_positions() -> None:
    for kind in (CARRIED, RESULT):
        right, wrong = (
            Observed(
                (kind, 2, "f32"), None, (0, 0), np.array(n, np.float32), operation="stablehlo.add", words="microbatch 0"
            )
            for n in (1, 2)
        )
        assert names(first_wrong([right], [wrong], TOLERANCE)) == ("microbatch 0", f"{kind} 2, stablehlo.add")


def test_rounding_is_no_difference() -> None:
    noisy = with_noise([made(1)], [made(1.001)])
    assert first_wrong(noisy, [made(1.005)], TOLERANCE) is None
    assert first_wrong([made(1)], [made(1.005)], TOLERANCE) is not None
    assert with_noise([made(1)], [made(1), made(2)])[0].noise == 0.0  # the runs made other values


def record(**options: Any) -> Record:
    values = [made(1, line="train.py:3:1"), made(2, (RESULT, ("a", "b")), microbatch=1)]
    results = {0: np.arange(3.0, dtype=np.float32), 1: np.ones(2, ml_dtypes.bfloat16)}
    arguments: dict[int, Any] = {0: np.ones((2, 2), np.int32)}
    return dataclasses.replace(Record(arguments, results, values, {0: 0.0, 1: 0.25}, 0.02), **options)


def test_a_record_comes_back_from_its_file() -> None:
    one = record()
    data = one.to_bytes()
    other = Record.from_bytes(data)
    assert is_record(data)
    assert other.results[1].dtype == ml_dtypes.bfloat16
    assert [(each.place, each.task, each.unit, each.behind, each.line) for each in one.values] == [
        (each.place, each.task, each.unit, each.behind, each.line) for each in other.values
    ]
    assert (other.noise, other.relative) == (one.noise, one.relative)
    assert one.differences(other, TOLERANCE) == []
    assert one.wrong_value(other, TOLERANCE) is None


def test_records_that_differ() -> None:
    one, other = record(), record(results={0: np.arange(3.0, dtype=np.float32) + 1, 1: record().results[1]})
    (difference,) = one.differences(other, TOLERANCE)
    assert str(difference) == "result 0 differs by 1, 0 before and 1 after at [0]; allowed 2e-05"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"arguments": {}}, r"^argument 0 is missing, expected int32\[2, 2\]$"),
        ({"arguments": {0: np.zeros((2, 2), np.int32)}}, "^the arguments have other numbers: record both runs with "),
        ({"results": {}}, r"^result 0 is missing, expected float32\[3\]$"),
    ],
)
def test_records_of_other_steps_are_refused(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        record().differences(record(**options), TOLERANCE)


def test_files_that_are_no_records_are_refused(tmp_path: Any) -> None:
    np.savez(tmp_path / "a.npz", result0=np.ones(2))
    with pytest.raises(ValueError, match=r"^it is no record of a run: KeyError: 'about'$"):
        Record.from_bytes((tmp_path / "a.npz").read_bytes())
    with pytest.raises(ValueError, match=r"^it is no record of a run: File is not a zip file$"):
        Record.from_bytes(b"PK")


def test_a_damaged_record_is_refused_in_words() -> None:
    data, generator = record().to_bytes(), random.Random(0)
    refused = 0
    for _ in range(500):
        changed = bytearray(data)
        for _ in range(generator.randint(1, 3)):
            changed[generator.randrange(len(changed))] = generator.randrange(256)
        try:
            Record.from_bytes(bytes(changed))
        except ValueError:
            refused += 1
    assert refused > 300
