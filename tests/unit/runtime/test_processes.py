"""Programs over several processes of `jax.distributed`: real processes, compared with plain jax.jit in each of them."""

from typing import Any

import pytest
from unit.runtime import jobs, together

JOBS = [
    jobs.several_meshes_each,
    jobs.one_mesh_each,
    jobs.meshes_across_processes,
    jobs.some_shards_cross,
    jobs.nothing_piles_up,
]


@pytest.fixture(scope="module")
def results() -> dict[str, list[Any]]:
    """What each job returned in two processes of two devices each, started once."""
    found = together.run(JOBS, processes=2, devices=2)
    return {job.__name__: [each[number] for each in found] for number, job in enumerate(JOBS)}


def test_several_meshes_in_a_process(results: dict[str, list[Any]]) -> None:
    assert results["several_meshes_each"] == [[1, 1, 0, 0, 0], [0, 0, 1, 1, 1]]


def test_one_mesh_in_a_process(results: dict[str, list[Any]]) -> None:
    assert results["one_mesh_each"] == [[2, 0, 0], [0, 2, 2]]


def test_meshes_that_span_processes(results: dict[str, list[Any]]) -> None:
    assert results["meshes_across_processes"] == [[1, 1, 1], [1, 1, 1]]
    assert results["some_shards_cross"] == [[1, 1, 1], [1, 1, 1]]


def test_nothing_piles_up_over_a_thousand_steps(results: dict[str, list[Any]]) -> None:
    for counts in results["nothing_piles_up"]:
        assert len(set(counts)) == 1
