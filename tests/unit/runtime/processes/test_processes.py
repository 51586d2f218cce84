"""Programs over several processes of `jax.distributed`: real processes, compared with plain jax.jit in each of them."""

import base64
import dataclasses
import re
from pathlib import Path
from typing import Any

import jax
import pytest
from unit.runtime.processes import jobs, together

from jaxpp import debug
from jaxpp.validation.compare import Tolerance
from jaxpp.validation.records import Record

JOBS = [
    jobs.several_meshes_each,
    jobs.one_mesh_each,
    jobs.in_columns,
    jobs.narrow_arrays_fetched,
    jobs.compared,
    jobs.meshes_across_processes,
    jobs.some_shards_cross,
    jobs.saved_and_loaded,
    jobs.a_saved_step_that_one_cannot_load,
    jobs.residuals_on_the_host,
    jobs.state_on_the_host,
    jobs.residuals_on_a_peer,
    jobs.a_vocabulary_over_processes,
    jobs.slices_over_processes,
    jobs.delayed_gradients,
    jobs.explicit_tasks,
    jobs.steps_rolled_back,
    jobs.operations_as_tasks,
    jobs.weight_gradients_left_out,
    jobs.meshes_of_different_sizes,
    jobs.traced_steps,
    jobs.recorded,
    jobs.partitioned,
    jobs.tuned,
    jobs.stacks_keys_and_whole_meshes,
    jobs.stacks_of_some_meshes,
    jobs.arrays_of_jaxpp,
    jobs.nothing_piles_up,
    jobs.deleted_at_once,
    jobs.one_step_ahead,
    jobs.memory_limits,
    jobs.other_settings,
    jobs.calls_left_out,
    jobs.another_program,
    jobs.another_schedule,
    jobs.another_program_later,
    jobs.steps_in_turns,
    jobs.another_number_of_steps,
    jobs.a_failing_task,
    jobs.transfers_that_differ,
    jobs.one_that_does_not_send,
    jobs.a_forked_child,
    jobs.one_process_ends,  # the last: nothing runs after it
]

ONCE = [
    jobs.compared,
    jobs.state_on_the_host,
    jobs.saved_and_loaded,
    jobs.a_saved_step_that_one_cannot_load,
    jobs.other_settings,
    jobs.calls_left_out,
    jobs.another_schedule,
    jobs.a_vocabulary_over_processes,
    jobs.slices_over_processes,
    jobs.delayed_gradients,
    jobs.explicit_tasks,
    jobs.steps_rolled_back,
    jobs.recorded,
    jobs.partitioned,
    jobs.tuned,
    jobs.stacks_of_some_meshes,
    jobs.arrays_of_jaxpp,
    jobs.memory_limits,
]
"""What does not depend on how values travel."""

once = pytest.mark.parametrize("results", ["wire"], indirect=True, scope="module")


@pytest.fixture(scope="module", params=["wire", "transfer"])
def results(request: pytest.FixtureRequest) -> dict[str, list[Any]]:
    """What each job returned in two processes of two devices each, started once unless one fails.

    With small values, in processes that `jaxpp.distributed` has started; with none, where JAX alone did.
    """
    transfer = request.param == "transfer"
    run = [job for job in JOBS if job not in ONCE] if transfer else JOBS
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INITIALIZE", "jax" if transfer else "jaxpp")
        first = [jobs.nothing_is_small] if transfer else []
        return together.run_each(run, processes=2, devices=2, first=first)


def test_several_meshes_in_a_process(results: dict[str, list[Any]]) -> None:
    assert results["several_meshes_each"] == [[1, 1, 0, 0, 0], [0, 0, 1, 1, 1]]


def test_one_mesh_in_a_process(results: dict[str, list[Any]]) -> None:
    assert results["one_mesh_each"] == [[2, 0, 0], [0, 2, 2]]


def test_arrays_that_lie_in_columns(results: dict[str, list[Any]]) -> None:
    assert results["in_columns"] == [[True] * 4] * 2


def test_fetched_numbers_of_narrow_types(results: dict[str, list[Any]]) -> None:
    assert results["narrow_arrays_fetched"] == [[], []]


@once
def test_a_record_of_two_processes_equals_that_of_one(results: dict[str, list[Any]], tmp_path: Path) -> None:
    (wrong, written), (again, *nothing) = results["recorded"]
    assert (again, nothing) == (wrong, [])
    assert wrong.startswith("first wrong: before all passes\ntask: unknown\n")
    two = Record.from_bytes(base64.b64decode(written))
    weights, batch = jobs.arguments(2)
    step = jobs.compiled(2, jax.devices()[:4])
    debug.record(step, tmp_path / "one.npz", weights, batch)
    one = Record.from_bytes((tmp_path / "one.npz").read_bytes())
    tolerance = Tolerance(1e-5)
    assert one.differences(two, tolerance) == []
    assert one.wrong_value(two, tolerance) is None
    # A value that differs is found in its task, whichever process made it.
    number = next(n for n, each in enumerate(two.values) if str(each.task) == "backward of stage 1, microbatch 2")
    changed = dataclasses.replace(two.values[number], value=two.values[number].value + 1)
    values = [*two.values[:number], changed, *two.values[number + 1 :]]
    found = one.wrong_value(dataclasses.replace(two, values=values), tolerance)
    assert found is not None
    assert found.task == "backward of stage 1, microbatch 2 on mesh 1"
    assert found.line.rpartition("/")[2].startswith("jobs.py:")


@once
def test_steps_are_compared(results: dict[str, list[Any]]) -> None:
    first, second = results["compared"]
    assert first == second
    assert [each.partition(":")[0] for each in first] == ["rounding", "rounding"]
    assert "where both compute in float32" in first[1]


def test_meshes_that_span_processes(results: dict[str, list[Any]]) -> None:
    assert results["meshes_across_processes"] == [[[1, 1, 1], [2, 1, 1]]] * 2
    assert results["some_shards_cross"] == [[1, 1, 1], [1, 1, 1]]


@once
def test_saved_steps(results: dict[str, list[Any]]) -> None:
    assert results["saved_and_loaded"] == [[[True] * 3] * 2] * 2


@once
def test_a_saved_step_that_one_process_cannot_load(results: dict[str, list[Any]]) -> None:
    """All are told, so that all compile; where one of them does so by itself, both are told of the other."""
    zero, one = results["a_saved_step_that_one_cannot_load"]
    damaged = "FOLDER/process_1: it is damaged, or no saved step: it is not as it was written; save the step again"
    compiles, loads = "process 1 compiles the step `train_step`", "process 0 loads a saved step"
    assert zero == [
        "SavedStepError",
        f"the step can't be loaded in process 1: {damaged}",
        *(False, 2, "TransferError", f"{compiles}, {loads}"),
    ]
    assert one == ["SavedStepError", damaged, False, 2, "TransferError", f"{loads}, {compiles}"]


def test_residuals_that_go_to_the_host(results: dict[str, list[Any]]) -> None:
    assert results["residuals_on_the_host"] == [[[2, 0, 0], [1, 1, 1]], [[0, 2, 2], [1, 1, 1]]]


@once
def test_a_state_that_stays_on_the_host(results: dict[str, list[Any]]) -> None:
    assert results["state_on_the_host"] == [["pinned_host"]] * 2


def test_residuals_that_go_to_a_peer(results: dict[str, list[Any]]) -> None:
    assert results["residuals_on_a_peer"] == [[1, 1, 0, 0, 0], [0, 0, 1, 1, 1]]


@once
def test_stages_that_are_a_graph(results: dict[str, list[Any]]) -> None:
    first, second = results["a_vocabulary_over_processes"]
    assert first == second
    assert max(first) < 1e-6


@once
def test_slices_of_the_sequence(results: dict[str, list[Any]]) -> None:
    first, second = results["slices_over_processes"]
    assert first == second
    assert max(first) < 1e-5


@once
def test_steps_that_overlap(results: dict[str, list[Any]]) -> None:
    assert results["delayed_gradients"] == [[True] * 9] * 2


@once
def test_explicit_tasks(results: dict[str, list[Any]]) -> None:
    assert results["explicit_tasks"] == [[True] * 4] * 2


@once
def test_a_step_that_is_rolled_back(results: dict[str, list[Any]]) -> None:
    assert results["steps_rolled_back"] == [[1, *[True] * 6]] * 2


def test_functions_of_the_user_as_tasks(results: dict[str, list[Any]]) -> None:
    """Each process calls those of its meshes, in 3 steps of 4 microbatches; one that fails ends the step everywhere."""
    first, second = results["operations_as_tasks"]
    assert first[:2] == [[[0, 12]], [[0, 12], [1, 12]]]
    assert second[:2] == [[[1, 12]], [[0, 12], [1, 12]]]
    assert first[2] == ["OSError", "the disk is full"]
    assert second[2][0] == "TransferError"
    assert second[2][1].endswith("process 0 failed: OSError: the disk is full")


def test_meshes_of_different_sizes(results: dict[str, list[Any]]) -> None:
    steps, microbatches, activations, weight = 3, 4, 8 * 32, 32 * 32
    sent = steps * (microbatches * activations + weight) * 4  # each once, whether the receiver has one device or two
    assert results["meshes_of_different_sizes"] == [
        [[[1, 0, 0], [2, 0, 0], [1, 1, 1], [1, 0, 0], [1, 1, 0, 0], [1, 1, 0]], sent],
        [[[0, 2, 2], [0, 1, 1], [0, 1, 1], [1, 1, 1], [0, 1, 1, 1], [2, 0, 2]], sent],
    ]


@once
def test_memory_limits(results: dict[str, list[Any]]) -> None:
    """Each process compiles for its own meshes only; all know what the others need, choose alike, and say the same."""
    first, second = results["memory_limits"]
    assert first == second
    before, after, refusal, one_alone, one_too_small = first
    assert (before, after) == ("", "0:0B")
    assert re.match(
        r".*\.py:\d+:\d+: error: mesh 0 needs [0-9,]+ bytes on each device, [0-9,]+ of them for temporaries of its",
        refusal,
    )
    for found, limits in ((one_alone, ("1000000000", "none")), (one_too_small, ("1000", "1000000000"))):
        lines = [f"  process {me}: memory_limit={limit}" for me, limit in enumerate(limits)]
        assert found.splitlines() == ["process 1 has other settings than process 0:", *lines]


@once
def test_other_settings(results: dict[str, list[Any]]) -> None:
    """With another option in one process, replicas of weights would differ in silence."""
    first, second = results["other_settings"]
    assert first == second
    assert [re.sub(r"^.*\n  process \d: |\n  process \d:", "", each) for each in first] == [
        "compiler_options[xla_cpu_enable_fast_math]=none compiler_options[xla_cpu_enable_fast_math]=true",
        "compiler_options[1][xla_cpu_enable_fast_math]=none compiler_options[1][xla_cpu_enable_fast_math]=true",
        "share_tasks=auto share_tasks=never",
        "jax_enable_x64=False jax_enable_x64=True",
        "jax_default_matmul_precision=None jax_default_matmul_precision=highest",
        "jax_default_prng_impl=threefry2x32 jax_default_prng_impl=rbg",
        "--xla_allow_excess_precision=none --xla_allow_excess_precision=false",
        "compiler_options[xla_cpu_enable_fast_math]=none compiler_options[xla_cpu_enable_fast_math]=true",
    ]
    assert {each.partition("\n")[0] for each in first} == {"ProcessError: process 1 has other settings than process 0:"}


@once
def test_calls_that_one_process_leaves_out(results: dict[str, list[Any]]) -> None:
    texts = [[f"{number} of {me}" for me in range(2)] for number in range(3)]
    fetches = "fetches 1 array"
    for me, (gathers, before, compiles, after, held) in enumerate(results["calls_left_out"]):
        told = [f"process 1 {fetches}, process 0 {{}}", f"process 0 {{}}, process 1 {fetches}"][me]
        assert gathers == told.format("traces a step")
        assert compiles == told.format("compiles the step `train_step`")
        assert before == after == texts
        assert held == 1


def test_traces_of_processes(results: dict[str, list[Any]]) -> None:
    kinds = {"before": 1, "forward": 4, "backward": 4, "send": 4, "after": 1}
    expected = {f"{kind} on mesh {mesh}": count for kind, count in kinds.items() for mesh in range(2)}
    assert results["traced_steps"] == [[expected] * 4] * 2


@once
def test_layers_are_cut_alike_in_all_processes(results: dict[str, list[Any]]) -> None:
    one, other = results["partitioned"]
    assert one == other
    assert sum(one[0]) == 4


@once
def test_a_step_that_tunes_itself_over_processes(results: dict[str, list[Any]]) -> None:
    """The third layer moves to the first process, back to compare, and there again; in the second run it is back."""
    there, after = [0, 0, 1, 1], [0, 0, 0, 1]
    better, worse = results["tuned"][0]
    assert better == [[3, 1], 1.25, [there, after] * 2]
    assert worse == [[2, 2], 1.0, [there, after, there, after, there]]
    assert results["tuned"][0] == results["tuned"][1]


def test_stacked_weights_keys_and_arrays_over_all_devices(results: dict[str, list[Any]]) -> None:
    assert results["stacks_keys_and_whole_meshes"] == [[2, 1, 32, 32]] * 2


@once
def test_stacks_that_one_process_has_no_part_of(results: dict[str, list[Any]]) -> None:
    assert results["stacks_of_some_meshes"] == [[2, 0], [0, 2]]


@once
def test_names_of_jaxpp(results: dict[str, list[Any]]) -> None:
    assert results["arrays_of_jaxpp"] == [[False, True, True], [True, False, False]]


def test_nothing_piles_up_over_hundreds_of_steps(results: dict[str, list[Any]]) -> None:
    for each in results["nothing_piles_up"]:
        assert [len(counts) for counts in each] == [4, 4]
        assert all(counts[-1] <= min(counts) for counts in each), each


def test_weight_gradients_left_out(results: dict[str, list[Any]]) -> None:
    for me, (kind, message, seconds) in enumerate(results["weight_gradients_left_out"]):
        assert kind == "TransferError"
        assert message.startswith(f"process {1 - me} leaves out other weight gradients than process {me}: give")
        assert seconds < together.SOON


def test_processes_with_different_programs_stop_at_once(results: dict[str, list[Any]]) -> None:
    for kind, message, seconds in results["another_program"]:
        assert kind == "ProcessError"
        assert re.fullmatch(
            r"process 1 runs another program than process 0, from line \d+ on:\n"
            r"  process 0: .*dense<5.000000e-01> : tensor<f32>\n"
            r"  process 1: .*dense<1.500000e\+00> : tensor<f32>",
            message,
        )
        assert seconds < together.SOON


@once
def test_processes_with_different_schedules(results: dict[str, list[Any]]) -> None:
    lines = "  process 0: schedule: 1f1b\n  process 1: schedule: gpipe"
    for kind, message, _ in results["another_schedule"]:
        assert kind == "ProcessError"
        assert re.fullmatch(rf"process 1 runs another program than process 0, from line \d+ on:\n{lines}", message)


def test_processes_that_call_different_programs_or_steps_stop_at_once(results: dict[str, list[Any]]) -> None:
    found = {name: results[name] for name in ("another_program_later", "another_number_of_steps")}
    lines = ":\n  process 0: batch[0]: float32[4,8,32]\n  process 1: batch[0]: float32[6,8,32]"
    assert {each[0] for both in found.values() for each in both} == {"TransferError"}
    assert [each[1] for both in found.values() for each in both] == [
        f"process 1 calls another program than process 0{lines}",
        f"process 0 calls another program than process 1{lines}",
        "process 1 is at step 3, process 0 at step 2",
        "process 0 is at step 2, process 1 at step 3",
    ]
    assert all(each[2] < together.SOON for both in found.values() for each in both)


def test_calls_that_differ_stop_at_once(results: dict[str, list[Any]]) -> None:
    for me, found in enumerate(results["steps_in_turns"]):
        other = 1 - me
        assert {each[0] for each in found} == {"TransferError"}
        assert all(each[2] < together.SOON for each in found)
        numbers, tree, shape, another_call = [each[1] for each in found]
        assert numbers == (
            f"argument `batch[1]` has other numbers in process {other} than in process {me}: "
            "give the whole array, with the same numbers, in every process"
        )
        assert tree == (
            f"process {other} fetches another tree than process {me}:\n"
            "  process 0: ['a']: float32[32,32] on processes 1\n  process 1: [0]: float32[32,32] on processes 0"
        )
        calls = [["calls", "compiles"][each] + " the step `train_step`" for each in (me, other)]
        assert shape == (
            f"process {other} {calls[1]}, process {me} {calls[0]}:\n"
            "  process 0: batch[0]: float32[4,8,32]\n  process 1: batch[0]: float32[4,4,32]"
        )
        calls = [["fetches 1 array", "calls the step `train_step`"][each] for each in (me, other)]
        assert another_call == f"process {other} {calls[1]}, process {me} {calls[0]}"


def test_a_failing_task_fails_everywhere_and_the_next_step_works(results: dict[str, list[Any]]) -> None:
    first, second = results["a_failing_task"]
    assert first[:2] == ["RuntimeError", "RESOURCE_EXHAUSTED: out of memory"]
    assert second[0] == "TransferError"
    assert re.fullmatch(
        r"mesh 1: receive on channel \d+ .* from process 0: process 0 failed: RuntimeError: .*out of memory", second[1]
    )


def test_transfers_that_differ_end(results: dict[str, list[Any]]) -> None:
    for number, found in enumerate(results["transfers_that_differ"]):
        where = f"mesh {1 - number}: receive on channel 7 from process {1 - number}"
        another_type, another_number, another_size, interrupted = found
        assert another_type[:2] == another_number[:2] == ["TimeoutError", f"{where}: nothing came for half a second"]
        assert another_size[0] == "TransferError"
        is_transfer = "nothing_is_small" in results
        wrong = "INVALID_ARGUMENT: Invalid slicing of buffer" if is_transfer else "32 bytes came, 16 were expected"
        assert another_size[1].startswith(f"{where}: {wrong}")
        assert interrupted[0] == "KeyboardInterrupt"
        assert interrupted[2] < together.SOON


def test_what_was_not_sent_before_the_next_step_is_an_error(results: dict[str, list[Any]]) -> None:
    first, second = results["one_that_does_not_send"]
    assert first is None
    if "nothing_is_small" in results:  # a transfer may still come
        assert second[0] == "TimeoutError"
    else:
        where = "mesh 0: receive on channel 7 from process 0"
        assert second[:2] == ["TransferError", f"{where}: it is in its next step, and has not sent this"]


def test_results_may_be_deleted_at_once(results: dict[str, list[Any]]) -> None:
    assert results["deleted_at_once"] == [None, None]


def test_a_process_that_only_sends_stays_close_to_its_receiver(results: dict[str, list[Any]]) -> None:
    """What it has on offer is bounded: that of the step that the receiver is in, and of the next."""
    returned, began = results["one_step_ahead"]
    assert returned > began


def test_a_forked_child_ends(results: dict[str, list[Any]]) -> None:
    assert results["a_forked_child"] == [7, 7]


def test_a_step_with_a_process_that_has_ended(results: dict[str, list[Any]]) -> None:
    first, second = results["one_process_ends"]
    assert first is None
    assert second[:2] == ["TransferError", "waiting for process 0: process 0 has ended"]
    assert second[2] < together.SOON
