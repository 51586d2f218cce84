"""Memory, FLOPs and bytes of a program, against XLA's numbers, the arrays that live in a run, and counts by hand."""

from collections import Counter
from typing import Any

import jax
import pytest
from unit.runtime.execution.test_route import program as hop_of
from unit.runtime.programs import Live, Pipeline, watched

from jaxpp.runtime import Call
from jaxpp.runtime.execution.compiling import FunctionStats
from jaxpp.runtime.measuring.analysis import (
    ADDED,
    cost_analysis,
    memory_analysis,
    microbatches,
    parameters,
    sent_bytes,
    stages,
)

WEIGHT, ROWS, SCALAR = 4 * 32 * 32, 4 * 8 * 32, 4
"""Bytes of a weight, of a microbatch's activations, and of a loss or a microbatch's number."""


@pytest.mark.parametrize("pipeline", [Pipeline(3, 4), Pipeline(2, 4, data=2), Pipeline(2, 3, donate=False)])
def test_the_peak_is_that_of_the_arrays_which_live(pipeline: Pipeline) -> None:
    executable = pipeline.executable()
    program = executable.program
    peaks = [0] * program.meshes

    def count(mesh: int, instruction: Any, live: Live) -> None:
        if isinstance(instruction, Call):
            shards = [each.addressable_shards[0].data for each in live[mesh].values() if not each.is_deleted()]
            buffers = {each.unsafe_buffer_pointer(): each.nbytes for each in shards}
            temporaries = executable.stats[instruction.function, mesh].temp_size_in_bytes
            peaks[mesh] = max(peaks[mesh], sum(buffers.values()) + temporaries)

    executable.run(pipeline.arguments(), watched(executable, count))
    found = memory_analysis(program, executable.stats)
    assert [each.peak_memory_in_bytes for each in found if each] == peaks


def test_arguments_and_results() -> None:
    first, last = memory_analysis((executable := Pipeline(2, 4, data=2).executable()).program, executable.stats)
    assert first is not None
    assert last is not None
    assert first.argument_size_in_bytes == WEIGHT + 4 * ROWS // 2  # each device has half of the rows
    assert (last.argument_size_in_bytes, last.output_size_in_bytes) == (WEIGHT, WEIGHT + SCALAR)
    assert (first.alias_size_in_bytes, last.alias_size_in_bytes) == (WEIGHT, WEIGHT)
    kept, _ = memory_analysis((executable := Pipeline(2, 4, donate=False).executable()).program, executable.stats)
    assert kept is not None
    assert kept.alias_size_in_bytes == 0
    assert kept.temp_size_in_bytes == max(
        each.temp_size_in_bytes for (_, mesh), each in executable.stats.items() if mesh == 0
    )


def test_costs_are_those_of_the_functions_as_often_as_they_are_called() -> None:
    executable = Pipeline(2, 4).executable()
    stats = executable.stats
    called = [
        Counter(each.function for each in sequence if isinstance(each, Call))
        for sequence in executable.program.sequences
    ]
    for mesh, costs in enumerate(cost_analysis(executable.program, stats)):
        assert costs is not None
        assert (
            costs["flops"]
            == sum(count * stats[name, mesh].costs.get("flops", 0) for name, count in called[mesh].items())
            > 0
        )
        assert costs.keys() <= set(ADDED)


def test_what_only_others_compile_is_not_known() -> None:
    executable = Pipeline(2, 1).executable()
    program, every = executable.program, executable.stats
    first = {key: each for key, each in every.items() if key[1] == 0}
    for stats in (first, {key: each for key, each in every.items() if key != ("loss", 1)}):
        assert [each is None for each in memory_analysis(program, stats)] == [False, True]
        assert [each is None for each in cost_analysis(program, stats)] == [False, True]


def test_a_mesh_with_options_of_its_own_has_statistics_of_its_own() -> None:
    """One function, compiled twice: without fusion it needs more."""
    options = {"xla_disable_hlo_passes": "fusion"}
    pipeline = Pipeline(3, 2)
    plain, unfused, mixed = (pipeline.executable(compiler_options=each).stats for each in (None, options, {1: options}))
    assert any(plain[key] != unfused[key] for key in plain if key[1] == 1)
    assert mixed == {key: (unfused if key[1] == 1 else plain)[key] for key in plain}


def test_a_backend_without_cost_analysis() -> None:
    class Compiled:
        def __init__(self, text: str) -> None:
            self.text = text
            self.temp_size_in_bytes = self.generated_code_size_in_bytes = 3

        def get_compiled_memory_stats(self) -> Any:
            return self

        def cost_analysis(self) -> Any:
            raise jax.errors.JaxRuntimeError(self.text)

    assert FunctionStats.of(Compiled("UNIMPLEMENTED: not here")) == FunctionStats(3, 3, {})
    with pytest.raises(RuntimeError, match="out of order"):
        FunctionStats.of(Compiled("INTERNAL: out of order"))


def test_what_a_program_sends_and_runs() -> None:
    program = Pipeline(3, 4, data=2).executable().program
    assert [sent_bytes(program, mesh) for mesh in range(3)] == [4 * ROWS, 2 * 4 * ROWS, 4 * ROWS]
    assert [stages(program, mesh) for mesh in range(3)] == [[0], [1], [2]]
    assert microbatches(program) == 4


def test_what_meshes_of_different_sizes_send() -> None:
    """A value of 8 x 32 floats: each device of the receiver gets what it is to have, and nothing else."""
    one, two, whole, cut = {"data": 1}, {"data": 2}, ((), ()), (("data",), ())
    hops = [
        ((whole, one), (whole, two)),
        ((whole, two), (whole, one)),
        ((whole, one), (cut, two)),
        ((cut, two), (whole, one)),
    ]
    programs = [hop_of((8, 32), *ends) for ends in hops]
    assert [sent_bytes(program, 0) // ROWS for program in programs] == [2, 1, 1, 1]
    assert all(sent_bytes(program, 1) == 0 for program in programs)


def test_parameters_are_updated_and_read_by_tasks() -> None:
    program = Pipeline(3, 2).executable().program
    assert parameters(program, {0, 1, 2}) == dict.fromkeys(range(3), 32 * 32)
    assert parameters(program, {1}) == {1: 1024}
    assert parameters(program, ()) == {}
