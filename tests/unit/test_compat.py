"""Every function around private names of JAX does what it says; what a JAX that nobody tried is told."""

# pyright: reportUnknownLambdaType=false

import inspect
import operator
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.layout import Format, Layout
from jax.extend.core import jaxpr_as_fun
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from jaxlib.mlir import ir
from unit import compat_jobs
from unit.runtime.processes import together

from jaxpp import _compat, _jobs

SUM = """
module @sum attributes {mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["x"=2]>
  func.func @main(%a: tensor<4xi32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>})
      -> (tensor<4xi32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) {
    %0 = stablehlo.add %a, %a : tensor<4xi32>
    return %0 : tensor<4xi32>
  }
}
"""
FOUR = np.arange(4, dtype=np.int32)


def test_every_function_is_tested() -> None:
    functions = [
        name
        for name, function in vars(_compat).items()
        if inspect.isfunction(function) and function.__module__ == _compat.__name__ and not name.startswith("_")
    ]
    tests = inspect.getsource(sys.modules[__name__]) + inspect.getsource(compat_jobs)
    assert [name for name in functions if f"_compat.{name}(" not in tests] == []


def test_a_host_callback_is_called_from_the_file_of_callbacks() -> None:
    stacks: list[traceback.StackSummary] = []

    def seen(x: Any) -> Any:
        stacks.append(traceback.extract_stack())
        return x

    jax.block_until_ready(jax.jit(lambda x: jax.pure_callback(seen, x, x))(jnp.float32(1)))
    assert _compat.file_of_callbacks() in [frame.filename for frame in stacks[0]]


def test_barriers_of_jax_and_orbax_are_in_these_files() -> None:
    from jax.experimental import multihost_utils
    from orbax.checkpoint import multihost

    functions = jax.distributed.initialize, multihost_utils.sync_global_devices, multihost.sync_global_processes
    assert {inspect.getfile(each) for each in functions} == _jobs.files_of_barriers()


def test_settings_that_numbers_depend_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also those that are set for this thread only; flags may stand in a file."""
    monkeypatch.setenv(
        "XLA_FLAGS", "--xla_dump_to=/here --xla_cpu_enable_fast_math --xla_force_host_platform_device_count=3"
    )
    before = _compat.numeric_settings()
    assert before["--xla_cpu_enable_fast_math"] == "true"
    assert not [name for name in before if "dump" in name or "count" in name]
    (tmp_path / "flags").write_text("--xla_allow_excess_precision=false\n")
    monkeypatch.setenv("XLA_FLAGS", str(tmp_path / "flags"))
    with jax.default_matmul_precision("highest"), jax.debug_key_reuse(True):
        after = _compat.numeric_settings()
    assert after.items() - before.items() == {
        ("--xla_allow_excess_precision", "false"),
        ("jax_default_matmul_precision", "highest"),
    }


def test_caches_of_what_lies_on_devices() -> None:
    """They are emptied with those of JAX; so are the tokens of programs with callbacks, which are waited for first."""
    calls: list[int] = []
    cached = _compat.device_cache(lambda number: calls.append(number))
    for _ in range(2):
        cached(3)
    assert calls == [3]
    jax.clear_caches()
    cached(3)
    assert calls == [3, 3]


def test_contexts_and_copies_of_modules() -> None:
    with _compat.make_context() as context:
        module = ir.Module.parse(SUM)
    copy = _compat.own_copy(module)
    assert copy.context is not context
    assert str(copy) == str(module)


def test_shardings_are_in_the_dialect_of_shardy() -> None:
    sharding = NamedSharding(Mesh(np.array(jax.devices()[:2]), "x"), PartitionSpec("x"))

    def text() -> str:
        return jax.jit(lambda a: a + 1, in_shardings=sharding).lower(FOUR).as_text()

    jax.config.update("jax_use_shardy_partitioner", False)
    try:
        assert "mhlo.sharding" in text()
        with _compat.as_passes_read():
            assert "sdy.sharding" in text()
    finally:
        jax.config.update("jax_use_shardy_partitioner", True)


def test_the_first_sharding_over_other_devices() -> None:
    meshes = [Mesh(np.array(jax.devices()[devices]), "x") for devices in (slice(2), slice(1, None, -1), slice(4))]
    placed = NamedSharding(meshes[0], PartitionSpec("x"))

    def constrain(a: jax.Array) -> jax.Array:
        return jax.lax.with_sharding_constraint(a, placed)

    def choose(a: jax.Array) -> jax.Array:
        return jax.lax.cond(a[0] > 0, constrain, jnp.abs, a)

    nested = jax.jit(choose).trace(FOUR).jaxpr.jaxpr
    line = inspect.getsourcelines(constrain)[1] + 1
    assert _compat.other_devices(jax.jit(jnp.abs).trace(FOUR).jaxpr.jaxpr, meshes[0]) is None
    assert _compat.other_devices(nested, meshes[0]) is None
    for mesh in meshes[1:]:
        assert _compat.other_devices(nested, mesh) == f"{__file__}:{line}"


def test_inline_call() -> None:
    with _compat.make_context(), ir.Location.unknown():
        module = ir.Module.parse(
            "func.func private @f(%a: tensor<i32>) -> tensor<i32> {\n"
            "  %0 = stablehlo.negate %a : tensor<i32>\n  return %0 : tensor<i32>\n}\n"
            "func.func @main(%a: tensor<i32>) -> tensor<i32> {\n  return %a : tensor<i32>\n}"
        )
        callee, main = module.body.operations
        block = main.regions[0].blocks[0]
        with ir.InsertionPoint.at_block_begin(block):
            (result,) = _compat.inline_call(callee.operation, block.arguments)
        assert ir.OpResult(result).owner.name == "stablehlo.negate"


def test_evaluate_constants() -> None:
    with _compat.make_context():
        module = ir.Module.parse(
            "func.func @main() -> tensor<i32> {\n  %0 = stablehlo.constant dense<21> : tensor<i32>\n"
            "  %1 = stablehlo.add %0, %0 : tensor<i32>\n  return %1 : tensor<i32>\n}"
        )
        assert np.asarray(_compat.evaluate_constants(module)[0]) == 42


def test_hide_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden: list[str] = []
    monkeypatch.setattr("jax.extend.source_info_util.register_exclusion", hidden.append)
    _compat.hide_frames("/somewhere/")
    assert hidden == ["/somewhere/"]


def test_source_of_ordered_effect() -> None:
    def inner(x: jax.Array) -> jax.Array:
        jax.debug.print("{}", x, ordered=True)
        return x

    line = inspect.getsourcelines(inner)[1] + 1
    assert f"{__file__}:{line}:" in str(_compat.source_of_ordered_effect(jax.make_jaxpr(jax.jit(inner))(1.0).jaxpr))
    assert _compat.source_of_ordered_effect(jax.make_jaxpr(jnp.sin)(1.0).jaxpr) is None


def test_closed_over_as_arguments() -> None:
    held = jnp.arange(3.0)

    def times_held(x: jax.Array) -> jax.Array:
        return x * held

    jaxpr, held_too = _compat.closed_over_as_arguments(jax.make_jaxpr(times_held)(2.0))
    assert (len(jaxpr.consts), len(jaxpr.in_avals), len(held_too)) == (0, 2, 1)
    np.testing.assert_array_equal(jaxpr_as_fun(jaxpr)(held, jnp.float32(2.0))[0], [0, 2, 4])


def test_a_program_runs_where_it_was_compiled_and_where_it_was_loaded() -> None:
    here, there = jax.devices()[:2], jax.devices()[2:4]
    executable = _compat.compile_program(SUM.encode(), here, {"xla_cpu_enable_fast_math": False})
    assert run(executable, here) == [0, 2, 4, 6]
    entry = _compat.cache_entry(SUM.encode(), here, {"xla_cpu_enable_fast_math": False})
    assert entry
    assert run(_compat.load_from_cache(entry, there, {"xla_cpu_enable_fast_math": False}), there) == [0, 2, 4, 6]
    other = _compat.cache_entry(SUM.encode(), here, {"xla_cpu_enable_fast_math": True})
    assert other
    assert _compat.load_from_cache(other, there, {"xla_cpu_enable_fast_math": True}) is None
    options = _compat.compile_options(here, {})
    assert options.executable_build_options.use_shardy_partitioner
    assert options.num_partitions == 2


def test_an_executable_is_loaded_for_other_devices() -> None:
    here, there = jax.devices()[:2], jax.devices()[2:4]
    number = time.time_ns() % 2**31  # a program that no cache has: what comes out of one can't be serialized again
    constant = f"%b = stablehlo.constant dense<{number}> : tensor<4xi32>\n%1 = stablehlo.add %0, %b : tensor<4xi32>"
    fresh = SUM.replace("return %0", f"{constant}\n    %2 = stablehlo.subtract %1, %b : tensor<4xi32>\n    return %2")
    executable = _compat.compile_program(fresh.encode(), here, {})
    assert run(_compat.load_executable(executable.serialize(), there, {}), there) == [0, 2, 4, 6]


def run(executable: Any, devices: Any) -> list[int]:
    sharding = NamedSharding(Mesh(np.array(devices), ("x",)), PartitionSpec("x"))
    handler = _compat.result_handler(_compat.abstract_value((4,), np.dtype(np.int32), sharding), sharding)
    (result,) = executable.execute_sharded([jax.device_put(FOUR, sharding)]).consume_with_handlers([handler])
    assert result.sharding == sharding
    return list(map(int, result))


def test_arrays_are_taken_apart_and_joined() -> None:
    sharding = NamedSharding(Mesh(np.array(jax.devices()[:2]), ("x",)), PartitionSpec("x"))
    shards = _compat.shards(jax.device_put(FOUR, sharding))
    assert [shard.tolist() for shard in shards] == [[0, 1], [2, 3]]
    joined = _compat.result_handler(_compat.abstract_value((4,), np.dtype(np.int32), sharding), sharding)([*shards])
    assert joined.sharding == sharding
    assert joined.committed
    np.testing.assert_array_equal(joined, FOUR)


def test_layouts() -> None:
    rows = jnp.zeros((2, 3))
    columns = jax.device_put(rows, Format(Layout((1, 0)), rows.sharding))
    assert _compat.is_default_layout(rows)
    assert not _compat.is_default_layout(columns)
    assert _compat.layout_of(rows) == _compat.layout_of(jnp.ones((2, 3)))
    assert _compat.layout_of(rows) != _compat.layout_of(columns)


@pytest.mark.parametrize("always", [False, True])
def test_a_batch_of_copies(always: bool) -> None:
    here, there = (SingleDeviceSharding(device) for device in jax.devices()[:2])
    arrays = [jax.device_put(FOUR, here)] * 2
    copied = _compat.copy_function()(arrays, *_compat.copy_arguments([here, there], always))
    assert [array.sharding for array in copied] == [here, there]
    assert (copied[0].unsafe_buffer_pointer() == arrays[0].unsafe_buffer_pointer()) != always
    np.testing.assert_array_equal(copied[1], FOUR)


def test_numbers_go_to_a_device_and_back_whatever_the_guard_says() -> None:
    sharding = SingleDeviceSharding(jax.devices()[1])
    with jax.transfer_guard("disallow"):
        array = _compat.to_device(FOUR, sharding)
        with _compat.OwnTransfers():
            again = _compat.placer(FOUR, sharding)(FOUR + 1)
        assert _compat.to_host(array).tolist() == [0, 1, 2, 3]
        assert _compat.to_host(again).tolist() == [1, 2, 3, 4]
        with pytest.raises(RuntimeError, match="Disallowed host-to-device transfer"):
            jnp.add(array, FOUR)
    assert array.sharding == sharding


def test_jaxlib_extension() -> None:
    assert isinstance(jax.devices()[0].client, _compat.jaxlib_extension().Client)


def test_cpu_devices_share_few_clients() -> None:
    before = set(map(id, jax.devices()))
    found = {count: _compat.cpu_devices(count) for count in range(1, 18)}
    assert [len(devices) for devices in found.values()] == [*range(1, 18)]
    assert all(len(set(devices)) == len(devices) for devices in found.values())
    assert len({id(device.client) for devices in found.values() for device in devices}) == 3  # of 8, 16 and 32
    assert not before & {id(device) for devices in found.values() for device in devices}
    mesh = Mesh(np.array(_compat.cpu_devices(3)), ("x",))
    placed = jax.device_put(np.arange(6), NamedSharding(mesh, PartitionSpec("x")))
    assert int(placed.sum()) == 15


def test_host_callbacks() -> None:
    def f(x: jax.Array) -> jax.Array:
        return jax.pure_callback(np.negative, x, x)

    assert len(_compat.host_callbacks(jax.jit(f).lower(1.0))) == 1
    assert _compat.host_callbacks(jax.jit(jnp.sin).lower(1.0)) == ()


def test_execute_noting_effects() -> None:
    said: list[int] = []

    def say(x: jax.Array) -> jax.Array:
        jax.debug.callback(lambda y: said.append(int(y)), x)
        return x

    lowered = jax.jit(say).lower(np.int32(0))
    bytecode, callbacks = str(lowered.compiler_ir()).encode(), _compat.host_callbacks(lowered)
    executable = _compat.compile_program(bytecode, jax.devices()[:1], {}, callbacks)
    execute = _compat.execute_noting_effects(executable)
    for number in (1, 2):
        execute([jax.device_put(np.int32(number), jax.devices()[0])])
    jax.effects_barrier()
    assert said == [1, 2]


def test_trace_context() -> None:
    before = _compat.trace_context()
    with jax.default_matmul_precision("highest"):
        assert _compat.trace_context() != before
    assert hash(_compat.trace_context()) == hash(before)


def test_what_a_function_closes_over() -> None:
    """Where JAX would add an argument: `unit.end_to_end.closing_over`."""
    table = jnp.arange(64.0)
    with _compat.as_passes_read():
        assert jax.jit(lambda x: x + table).lower(1.0).as_text().count("%arg1") == 0


def test_is_traced() -> None:
    found: list[bool] = []

    def look(x: Any) -> Any:
        found.append(_compat.is_traced())
        return x

    for transformed in (look, jax.jit(look), jax.grad(look), jax.jit(lambda _: look(0))):
        transformed(1.0)
    jax.vmap(look)(np.ones(2))
    assert found == [False, True, True, True, True]


def test_add_array_property() -> None:
    numbers = jnp.arange(3)
    _compat.add_array_property("first_of_the_tests", lambda array: array[0])
    _compat.add_array_property("first_of_the_tests", lambda array: array[1])  # the first one stays
    try:
        assert operator.attrgetter("first_of_the_tests")(numbers) == 0
    finally:
        delattr(type(numbers), "first_of_the_tests")


def test_weakly_typed() -> None:
    weak = _compat.weakly_typed(jnp.float32(2))
    assert weak.weak_type
    assert (weak + jnp.bfloat16(1)).dtype == jnp.bfloat16


def test_what_processes_share() -> None:
    before, farewell = compat_jobs.before_a_backend_starts, compat_jobs.without_farewell
    store, transfer = compat_jobs.through_the_store, compat_jobs.through_a_transfer
    jobs = [before, compat_jobs.preemption_on_demand, store, transfer, farewell]
    assert together.run(jobs, processes=1) == [[[False, False, 0, 1], [False, True, False], "there", 4, True]]


def test_a_cache_is_cleared_with_those_of_jax() -> None:
    class Cache:
        cleared = 0

        def cache_clear(self) -> None:
            self.cleared += 1

    cache = Cache()
    _compat.on_clear_caches(cache)
    jax.clear_caches()
    assert cache.cleared == 1
