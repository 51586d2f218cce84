"""A hand-written pipeline against NumPy: results, donation, frees, compiles, and the door for arguments."""

import collections
import contextlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxlib.mlir import ir
from unit.runtime.programs import Live, Pipeline, hop, module, parse, submeshes, watched

from jaxpp import _compat, runtime
from jaxpp.ir.tensors import read_constant


def assert_close(found: list[jax.Array], expected: list[np.ndarray[Any, Any]]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(one), other, rtol=1e-4, atol=1e-6)


def pointers(array: jax.Array) -> list[int]:
    return [shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards]


@pytest.mark.parametrize("pipeline", [Pipeline(4, 8), Pipeline(2, 3, data=2), Pipeline(1, 4, data=2), Pipeline(4, 1)])
def test_two_training_steps(pipeline: Pipeline) -> None:
    executable = pipeline.executable()
    arguments: list[Any] = [*pipeline.arguments()]
    for _ in range(2):
        expected = pipeline.expected(arguments)
        results = executable(arguments)
        assert_close(results, expected)
        arguments = [*results[:-1], arguments[-1]]
    for weight, submesh in zip(arguments, submeshes(pipeline.stages, pipeline.data), strict=False):
        assert weight.sharding == NamedSharding(submesh, PartitionSpec())


def test_results_fed_back_move_nothing_and_are_updated_in_place() -> None:
    pipeline = Pipeline(2, 2, data=2)
    executable = pipeline.executable()
    *weights, _ = executable([*pipeline.arguments()])
    before = [pointers(weight) for weight in weights]
    *updated, _ = executable([*weights, pipeline.arguments()[-1]])
    assert [pointers(weight) for weight in updated] == before


def test_donated_arguments_are_deleted_and_numpy_arrays_are_not_written() -> None:
    pipeline = Pipeline(2, 2)
    executable = pipeline.executable()
    arguments = pipeline.arguments()
    copies = [each.copy() for each in arguments]
    elsewhere = jax.device_put(arguments[0], jax.devices()[5])
    results = executable([elsewhere, *arguments[1:]])
    assert elsewhere.is_deleted()
    np.testing.assert_array_equal(np.stack(arguments[:2]), np.stack(copies[:2]))
    executable([*results[:-1], arguments[-1]])
    assert all(result.is_deleted() for result in results[:-1])
    with pytest.raises(RuntimeError, match=r"^argument `weights\[0\]` was donated to an earlier call"):
        executable([*results[:-1], arguments[-1]])


def test_without_donation_arguments_stay() -> None:
    pipeline = Pipeline(2, 2, donate=False)
    executable = pipeline.executable()
    arguments = [*executable(pipeline.arguments())[:-1], pipeline.arguments()[-1]]
    assert_close(executable(arguments), pipeline.expected(arguments))
    assert not any(each.is_deleted() for each in arguments[:-1] if isinstance(each, jax.Array))


def test_one_donated_array_twice_is_refused() -> None:
    pipeline = Pipeline(2, 2)
    executable = pipeline.executable()
    weight = jax.numpy.asarray(pipeline.arguments()[0])
    with pytest.raises(ValueError, match=r"`weights\[0\]` and `weights\[1\]` are one array, which is donated"):
        executable([weight, weight, pipeline.arguments()[-1]])
    assert not weight.is_deleted()


def test_memory_that_two_arguments_share_is_named() -> None:
    """XLA sees it; the arrays are two objects."""
    text = module(
        """func.func private @add(%x: tensor<4xf32> {tf.aliasing_output = 0 : i32}, %y: tensor<4xf32>)
            -> tensor<4xf32> attributes {jaxpp.kind = "after"} {
          %0 = stablehlo.add %x, %y : tensor<4xf32>
          return %0 : tensor<4xf32>
        }""",
        """func.func public @mesh_0(%x: tensor<4xf32> {jaxpp.number = 0 : i64, jax.buffer_donor = true},
              %y: tensor<4xf32> {jaxpp.number = 1 : i64}) -> (tensor<4xf32> {jaxpp.number = 0 : i64})
            attributes {jaxpp.mesh = 0 : i64} {
          %0 = call @add(%x, %y) {jaxpp.mesh = 0 : i64, jaxpp.last_use = array<i64: 0>}
              : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
          return %0 : tensor<4xf32>
        }""",
    )
    executable = runtime.Executable(parse(text), submeshes(1))
    x = jax.device_put(np.ones(4, "f4"), NamedSharding(submeshes(1)[0], PartitionSpec()))
    shared = jax.make_array_from_single_device_arrays(
        x.shape, x.sharding, [shard.data for shard in x.addressable_shards]
    )
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        executable([x, shared])
    assert (
        "jaxpp: two arguments share one memory, and are donated: make one of them a copy (jnp.copy)"
        in caught.value.__notes__
    )


def test_bad_arguments() -> None:
    pipeline = Pipeline(2, 2)
    executable = pipeline.executable()
    weight, other, batch = pipeline.arguments()
    bad: list[tuple[list[Any], type[Exception], str]] = [
        (
            [weight[:2], other, batch],
            ValueError,
            r"`weights\[0\]` is float32\[2, 32\]; the program was compiled for float",
        ),
        ([weight, other, batch.astype(int)], ValueError, r"`batch` is int32"),
        ([weight, "no", batch], TypeError, r"`weights\[1\]` is of type str, not an array"),
        ([weight], TypeError, "expected 3 arguments, found 1"),
    ]
    for arguments, error, text in bad:
        with pytest.raises(error, match=text):
            executable(arguments)
    assert_close(executable([weight, other, batch]), pipeline.expected([weight, other, batch]))


Compiled = collections.Counter[str]


@pytest.fixture
def compiled() -> Iterator[Compiled]:
    """How often each program was compiled during the test."""
    counter = Compiled()

    def listen(event: str, duration_secs: float, **labels: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            counter[labels["fun_name"]] += 1

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield counter
    jax.monitoring.unregister_event_duration_listener(listen)


def test_one_compile_for_each_distinct_function(compiled: Compiled) -> None:
    Pipeline(4, 2).executable()
    assert compiled == dict.fromkeys(("zeros", "first", "forward", "backward", "loss", "sgd"), 1)


def test_programs_out_of_the_persistent_cache_run(tmp_path: Path, compiled: Compiled) -> None:
    pipeline = Pipeline(4, 2)
    with enabled_cache(tmp_path):
        for _ in range(2):
            executable = pipeline.executable()
            assert_close(executable(pipeline.arguments()), pipeline.expected(pipeline.arguments()))
    assert set(compiled.values()) == {2}  # JAX counts what it finds in its cache as well


@contextlib.contextmanager
def enabled_cache(folder: Path) -> Generator[None]:
    options: dict[str, Any] = {
        "jax_compilation_cache_dir": str(folder),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in options}
    compilation_cache.reset_cache()
    for name, value in options.items():
        jax.config.update(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()


@pytest.mark.parametrize("microbatches", [2, 8])
def test_live_activations_are_those_of_one_f_one_b(microbatches: int) -> None:
    pipeline = Pipeline(4, microbatches)
    peaks = [0] * 4

    def count(mesh: int, instruction: Any, live: Live) -> None:
        if isinstance(instruction, runtime.Call) and instruction.kind == "forward":
            inputs = {id(array) for array in live[mesh].values() if array.shape == (8, 32)}
            peaks[mesh] = max(peaks[mesh], len(inputs) // 2)

    executable = pipeline.executable()
    results = executable.run(pipeline.arguments(), watched(executable, count))
    assert peaks == [min(microbatches, 4 - stage) for stage in range(4)]
    assert_close(results, pipeline.expected(pipeline.arguments()))


def test_a_failing_task_is_named_and_the_next_step_works() -> None:
    pipeline = Pipeline(2, 2, donate=False)
    executable = pipeline.executable()
    steps = executable._steps
    position = next(i for i, step in enumerate(steps) if "backward of stage 0, microbatch 1" in str(step[-1][0][1]))

    def fail(_: Any) -> Any:
        raise RuntimeError("RESOURCE_EXHAUSTED: out of memory")

    step = steps[position]
    steps[position] = (fail, *step[1:])
    with pytest.raises(RuntimeError, match="out of memory") as caught:
        executable(pipeline.arguments())
    steps[position] = step
    assert caught.value.__notes__ == ["jaxpp: in backward of stage 0, microbatch 1 on mesh 0"]
    assert_close(executable(pipeline.arguments()), pipeline.expected(pipeline.arguments()))


@pytest.mark.parametrize("names", [("mpmd", "data"), ("data", "mpmd")])
def test_values_on_several_meshes_are_one_array(names: tuple[str, str]) -> None:
    """Argument 0 lives on both meshes; result 0 is it again, result 1 is its double, computed on both."""
    spec = 'sdy.sharding = #sdy.sharding<@mesh, [{"data"}]>'
    text = module(
        f"""func.func private @double(%x: tensor<8xf32> {{{spec}}}) -> (tensor<8xf32> {{{spec}}})
              attributes {{jaxpp.kind = "after"}} {{
            %0 = stablehlo.add %x, %x : tensor<8xf32>
            return %0 : tensor<8xf32>
        }}""",
        *[
            f"""func.func public @mesh_{k}(
                %x: tensor<8xf32> {{jaxpp.number = 0 : i64, jax.buffer_donor = true, {spec}}})
              -> (tensor<8xf32> {{jaxpp.number = 0 : i64, {spec}}}, tensor<8xf32> {{jaxpp.number = 1 : i64, {spec}}})
              attributes {{jaxpp.mesh = {k} : i64}} {{
            %y = call @double(%x) {{jaxpp.mesh = {k} : i64}} : (tensor<8xf32>) -> tensor<8xf32>
            return %x, %y : tensor<8xf32>, tensor<8xf32>
        }}"""
            for k in range(2)
        ],
        data=2,
    )
    executable = runtime.Executable(parse(text), submeshes(2, 2, names), names=["x"])
    shape = (2, 2)
    devices = np.array(jax.devices()[:4]).reshape(shape)
    whole = Mesh(devices if names[0] == "mpmd" else devices.T, names)
    x = jax.device_put(np.arange(8, dtype="f4"), NamedSharding(whole, PartitionSpec("data")))
    same, double = executable([x])
    assert same.sharding == double.sharding == x.sharding
    assert pointers(same) == pointers(x)  # passed through: donated, so its buffers are the result's
    np.testing.assert_array_equal(double, 2 * np.arange(8))
    _, again = executable([double])
    np.testing.assert_array_equal(again, 4 * np.arange(8))
    assert {shard.device for shard in again.addressable_shards} == set(jax.devices()[:4])


def test_every_result_is_the_callers_own() -> None:
    """A value returned twice, a constant, and an argument that is not donated: distinct buffers, as from jax.jit."""
    text = module(
        """func.func public @mesh_0(%x: tensor<4xf32> {jaxpp.number = 0 : i64})
            -> (tensor<4xf32> {jaxpp.number = 0 : i64}, tensor<4xf32> {jaxpp.number = 1 : i64},
                tensor<2xbf16> {jaxpp.number = 2 : i64}, tensor<2xcomplex<f32>> {jaxpp.number = 3 : i64})
            attributes {jaxpp.mesh = 0 : i64} {
          %c = stablehlo.constant dense<[1.5, -0.25]> : tensor<2xbf16>
          %d = stablehlo.constant dense<[(1.0, 2.0), (3.0, -4.0)]> : tensor<2xcomplex<f32>>
          return %x, %x, %c, %d : tensor<4xf32>, tensor<4xf32>, tensor<2xbf16>, tensor<2xcomplex<f32>>
        }""",
    )
    executable = runtime.Executable(parse(text), submeshes(1))
    x = jax.device_put(np.arange(4, dtype="f4"), jax.devices()[0])
    for _ in range(2):
        first, second, constant, numbers = executable([x])
        assert len({x.unsafe_buffer_pointer(), first.unsafe_buffer_pointer(), second.unsafe_buffer_pointer()}) == 3
        np.testing.assert_array_equal(second, x)
        np.testing.assert_array_equal(constant.astype("f4"), [1.5, -0.25])
        np.testing.assert_array_equal(numbers, [1 + 2j, 3 - 4j])
        for each in (first, second, constant):
            each.delete()


BITS = {
    "ui64": ([2**64 - 1, 2**63, 2**32 + 1, 0], np.uint64),
    "i64": ([-(2**63), 2**63 - 1, -1, 2**40], np.int64),
    "f64": (["-0.0", "1.0e300", "0x7FF8000000000001", "0.1"], np.float64),
    "complex<f64>": (["(-0.0, 0x7FF0000000000000)", "(0x7FF8000000000001, -0.0)", "(0.1, 1.0e-300)"], np.complex128),
    "complex<f32>": (["(-0.0, 0x7F800000)", "(0x7FC00001, -0.0)"], np.complex64),
    "ui32": ([2**32 - 1, 0], np.uint32),
    "f32": (["-0.0", "0x7FC00001"], np.float32),
    "i1": (["true", "false"], np.bool_),
}


@pytest.mark.parametrize("data", [1, 2])
@pytest.mark.parametrize("x64", [True, False])
@pytest.mark.parametrize("element", BITS)
def test_constants_are_what_the_module_says_to_the_last_bit(element: str, x64: bool, data: int) -> None:
    """With and without 64-bit arrays of the user's; one stands alone, one is an argument of a task of another mesh."""
    elements, dtype = BITS[element]
    size = len(elements)
    tensor, bytes_ = f"tensor<{size}x{element}>", f"tensor<{size}x{np.dtype(dtype).itemsize}xui8>"
    cast = {
        "i1": f"stablehlo.convert %x : ({tensor}) -> tensor<{size}xui8>",
    }.get(element, f"stablehlo.bitcast_convert %x : ({tensor}) -> {bytes_}")
    lines = (
        f"%0 = {cast}" if element != "i1" else f"%b = {cast}\n%0 = stablehlo.reshape %b : (tensor<2xui8>) -> {bytes_}"
    )
    if element.startswith("complex"):
        part = f"tensor<{size}xf{np.dtype(dtype).itemsize * 4}>"
        half = f"tensor<{size}x{np.dtype(dtype).itemsize // 2}xui8>"
        lines = f"""%r = stablehlo.real %x : ({tensor}) -> {part}
            %i = stablehlo.imag %x : ({tensor}) -> {part}
            %s = stablehlo.bitcast_convert %r : ({part}) -> {half}
            %j = stablehlo.bitcast_convert %i : ({part}) -> {half}
            %0 = stablehlo.concatenate %s, %j, dim = 1 : ({half}, {half}) -> {bytes_}"""
    text = module(
        f"""func.func private @bytes(%x: {tensor}) -> {bytes_} {{
            {lines}
            return %0 : {bytes_}
        }}
        func.func private @same(%x: {tensor}) -> {tensor} {{
            return %x : {tensor}
        }}
        func.func public @mesh_0() -> ({bytes_} {{jaxpp.number = 0 : i64}}) attributes {{jaxpp.mesh = 0 : i64}} {{
            %t = stablehlo.create_token : !stablehlo.token
            %c = stablehlo.constant dense<[{", ".join(map(str, elements))}]> : {tensor}
            %d = call @same(%c) : ({tensor}) -> {tensor}
            %u = "stablehlo.send"(%d, %t) {hop(0, 1, 5)} : ({tensor}, !stablehlo.token) -> !stablehlo.token
            %y = call @bytes(%c) : ({tensor}) -> {bytes_}
            return %y : {bytes_}
        }}
        func.func public @mesh_1() -> ({bytes_} {{jaxpp.number = 1 : i64}}) attributes {{jaxpp.mesh = 1 : i64}} {{
            %t = stablehlo.create_token : !stablehlo.token
            %x, %u = "stablehlo.recv"(%t) {hop(0, 1, 5)} : (!stablehlo.token) -> ({tensor}, !stablehlo.token)
            %y = call @bytes(%x) : ({tensor}) -> {bytes_}
            return %y : {bytes_}
        }}""",
        data=data,
        meshes=2,
    )
    with jax.enable_x64(x64):
        found = runtime.Executable(parse(text), submeshes(2, data))([])
    with _compat.make_context():
        constant = ir.Operation.parse(f"%0 = stablehlo.constant dense<[{', '.join(map(str, elements))}]> : {tensor}")
        expected = read_constant(constant.operation)
    assert expected.dtype == dtype
    for each in found:
        assert np.asarray(each).tobytes() == expected.tobytes()


def test_arrays_with_part_of_an_axis_cross_between_meshes() -> None:
    """Shardy may shard a dimension over a part of an axis; no PartitionSpec says that."""
    spec = 'sdy.sharding = #sdy.sharding<@mesh, [{"data":(2)2}, {"data":(1)2}]>'
    per_value = 'sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data":(2)2}, {"data":(1)2}]>, <@mesh, []>]>'
    tensor = "tensor<4x4xf32>"
    text = module(
        f"""func.func private @double(%x: {tensor} {{{spec}}}) -> ({tensor} {{{spec}}}) {{
            %0 = stablehlo.add %x, %x : {tensor}
            return %0 : {tensor}
        }}
        func.func public @mesh_0(%x: {tensor} {{jaxpp.number = 0 : i64, {spec}}})
            attributes {{jaxpp.mesh = 0 : i64}} {{
            %t = stablehlo.create_token : !stablehlo.token
            %y = call @double(%x) : ({tensor}) -> {tensor}
            %u = "stablehlo.send"(%y, %t) {hop(0, 1, 5)} : ({tensor}, !stablehlo.token) -> !stablehlo.token
            return
        }}
        func.func public @mesh_1() -> ({tensor} {{jaxpp.number = 0 : i64, {spec}}})
            attributes {{jaxpp.mesh = 1 : i64}} {{
            %t = stablehlo.create_token : !stablehlo.token
            %x, %u = "stablehlo.recv"(%t) {hop(0, 1, 5)} {{{per_value}}}
                : (!stablehlo.token) -> ({tensor}, !stablehlo.token)
            %y = call @double(%x) : ({tensor}) -> {tensor}
            return %y : {tensor}
        }}""",
        data=4,
        meshes=2,
    )
    executable = runtime.Executable(parse(text), submeshes(2, 4))
    x = np.arange(16, dtype="f4").reshape(4, 4)
    np.testing.assert_array_equal(executable([x])[0], 4 * x)
