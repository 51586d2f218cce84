"""Every private name of JAX and jaxlib that jaxpp uses; all of `_versions.TRIED` have these names.

This file does not import `jax` at module level, so that `jaxpp-opt` starts without it.
"""

import atexit
import contextlib
import inspect
import io
import operator
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, TypeVar

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import chlo, mpmd, sdy, stablehlo

from jaxpp._versions import explained
from jaxpp._xla import module_for_xla, with_defaults, xla_flags

_Function = TypeVar("_Function", bound=Callable[..., Any])


def make_context() -> ir.Context:
    """Returns a new MLIR context, without importing jax. Dialects that are not named here load on demand."""
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext

    context = ir.Context()
    context.enable_multithreading(False)  # starting and stopping threads takes longer than they would save
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    context.append_dialect_registry(registry)
    context.dialects["func"]
    stablehlo.register_dialect(context)
    chlo.register_dialect(context)
    sdy.register_dialect(context)
    mpmd.register_dialect(context)
    return context


def inline_call(callee: ir.Operation, operands: Sequence[ir.Value]) -> list[ir.Value]:
    """Clones the body of `callee` (a func.func) at the current insertion point; returns its results."""
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext

    return list(_jax_mlir_ext.inlined_func_call(callee, list(operands)))


def evaluate_constants(module: ir.Module) -> list[ir.Attribute]:
    """Returns the results of `@main`, which has no arguments, by StableHLO's reference interpreter."""
    from jaxlib.mlir._mlir_libs import _stablehlo

    return list(_stablehlo.eval_module(module, []))


def hide_frames(path: str) -> None:
    """Hides the frames of a folder in MLIR locations and tracebacks, as JAX does for its own."""
    from jax._src import traceback_util
    from jax.extend import source_info_util

    source_info_util.register_exclusion(path)
    traceback_util.register_exclusion(path)


def own_copy(module: ir.Module) -> ir.Module:
    """Returns a clone of `module` in a context of its own, as `lowered.compiler_ir()` is JAX's cached object."""
    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer)
    with make_context():
        return ir.Module.parse(buffer.getvalue())


def source_of_ordered_effect(jaxpr: Any) -> str | None:
    """Returns `file:line:col` of the first ordered side effect in a jaxpr; None if it has none."""
    from jax._src import effects
    from jax.extend import source_info_util
    from jax.extend.core import jaxprs_in_params

    for eqn in jaxpr.eqns:
        if effects.ordered_effects.filter_in(eqn.effects):
            inner = (source_of_ordered_effect(each) for each in jaxprs_in_params(eqn.params))
            frame = source_info_util.summarize(eqn.source_info).partition(" ")[0]
            return next((found for found in inner if found), frame)
    return None


def closed_over_as_arguments(jaxpr: Any) -> tuple[Any, list[Any]]:
    """Turns the values that a closed jaxpr closes over into its first arguments; returns the jaxpr and the values."""
    from jax._src.interpreters import partial_eval
    from jax.extend.core import ClosedJaxpr

    return ClosedJaxpr(partial_eval.convert_constvars_jaxpr(jaxpr.jaxpr), ()), list(jaxpr.consts)


def jaxlib_extension() -> Any:
    """Returns JAX's C++ extension."""
    from jaxlib import _jax  # pyright: ignore[reportAttributeAccessIssue]  # no stub

    return _jax


def compile_program(
    bytecode: bytes,
    devices: Sequence[Any],
    compiler_options: Mapping[str, Any],
    host_callbacks: Sequence[Any] = (),
) -> Any:
    """Compiles a module with `@main` for `devices`, one partition each, through JAX's persistent cache.

    Counts as one compile in `jax.monitoring`. Returns a `LoadedExecutable`.
    """
    import numpy as np
    from jax._src import compiler, dispatch

    with make_context():
        module = module_for_xla(bytecode)
        name = ir.StringAttr(module.operation.attributes["sym_name"]).value
        message = "Finished XLA compilation of {fun_name} in {elapsed_time:.9f} sec"
        with dispatch.log_elapsed_time(message, fun_name=name, event=dispatch.BACKEND_COMPILE_EVENT):
            return compiler.compile_or_get_cached(
                devices[0].client,
                module,
                np.array(devices, dtype=object),
                compile_options(devices, compiler_options),
                list(host_callbacks),
                jaxlib_extension().DeviceList(tuple(devices)),
            )


def compile_options(devices: Sequence[Any], compiler_options: Mapping[str, Any]) -> Any:
    """Returns XLA's options for a program over `devices`, with Shardy and the defaults of its platform.

    It is called before XLA compiles or loads any program, and so also initializes the kernels of programs.
    """
    import numpy as np
    from jax.extend.backend import get_compile_options

    if devices[0].platform == "cpu":
        _initialize_kernels()
    options = get_compile_options(
        num_replicas=1,
        num_partitions=len(devices),
        device_assignment=np.array([[device.id for device in devices]]),
        env_options_overrides=with_defaults(devices, compiler_options),
        backend=devices[0].client,
    )
    options.executable_build_options.use_shardy_partitioner = True
    return options


@cache
def _initialize_kernels() -> None:
    """Initializes jaxlib's LAPACK kernels (70 ms), which crash otherwise; JAX does so when it lowers a call of one."""
    from jaxlib import lapack

    lapack._lapack.initialize()  # pyright: ignore[reportPrivateImportUsage]  # JAX takes it from there too


def load_executable(serialized: bytes, devices: Sequence[Any], compiler_options: Mapping[str, Any]) -> Any:
    """Loads a serialized executable for `devices`, even if it was compiled for others; returns a `LoadedExecutable`."""
    options = compile_options(devices, compiler_options)
    return devices[0].client.deserialize_executable(serialized, jaxlib_extension().DeviceList(tuple(devices)), options)


def cache_entry(bytecode: bytes, devices: Sequence[Any], compiler_options: Mapping[str, Any]) -> tuple[str, str] | None:
    """Returns the name and key of a module for `devices` in JAX's persistent cache; None if no cache is used."""
    import numpy as np
    from jax._src import compilation_cache

    client, options = devices[0].client, compile_options(devices, compiler_options)
    if not compilation_cache.is_cache_used(client):
        return None
    with make_context():
        module = module_for_xla(bytecode)
        key = compilation_cache.get_cache_key(module, np.array(devices, dtype=object), options, client)
        return ir.StringAttr(module.operation.attributes["sym_name"]).value, key


def load_from_cache(entry: tuple[str, str], devices: Sequence[Any], compiler_options: Mapping[str, Any]) -> Any | None:
    """Loads the entry of a `cache_entry` from JAX's persistent cache for `devices`; None if the cache lacks it.

    The entry may be of other devices. For an entry that can't be read JAX warns, and the result is None. A program from
    the cache must not be serialized again, as its functions are lost (CPU, 0.10.2).
    """
    from jax._src import compiler

    options = compile_options(devices, compiler_options)
    arguments = *entry, options, devices[0].client, jaxlib_extension().DeviceList(tuple(devices))
    new = "host_callbacks" in inspect.signature(compiler._cache_read).parameters  # in 0.12.0.1
    return compiler._cache_read(*arguments, *[()] * new)[0]


def abstract_value(shape: Sequence[int], dtype: Any, sharding: Any) -> Any:
    """Returns the type of an array with this sharding, which is a part of the type if mesh axes are explicit."""
    from jax._src import core

    return core.update_aval_with_sharding(core.ShapedArray(tuple(shape), dtype), sharding)


def result_handler(aval: Any, sharding: Any) -> Any:
    """Makes a committed `jax.Array` of one output of `execute_sharded`, or of a list of single-device arrays.

    The arrays are in the order of the sharding's devices. `jax.make_array_from_single_device_arrays` would check them
    again, for each task of each step.
    """
    from jax._src.interpreters import pxla

    return pxla.global_aval_to_result_handler(aval, sharding, True)


def shards(array: Any) -> Sequence[Any]:
    """Returns the single-device arrays of a `jax.Array`, in the order of its sharding's devices.

    `addressable_shards` has the same arrays, but makes a new object around each for every array.
    """
    return array._arrays


layout_of: Callable[[Any], Any] = operator.attrgetter("_pjrt_layout")
"""Returns the layout of an array's first shard, in 0.4 us; `array.format` takes 1.3."""


def is_default_layout(array: Any) -> bool:
    """Whether compiled programs that name no layout can read the array without a copy; for random keys always true."""
    from jax._src.interpreters import pxla

    from jaxpp._keys import is_key

    return is_key(array) or pxla.is_default_layout(array.format.layout, array.sharding, array.aval)


def copy_arguments(shardings: Sequence[Any], always: bool = False) -> tuple[list[Any], list[Any], list[Any]]:
    """Returns the last three arguments of `copy_function()` for a batch whose arrays go to `shardings`."""
    semantics = jaxlib_extension().ArrayCopySemantics
    devices = [sharding._internal_device_list for sharding in shardings]
    return devices, list(shardings), [semantics.ALWAYS_COPY if always else semantics.REUSE_INPUT] * len(devices)


def copy_function() -> Any:
    """Returns a function that copies a batch of arrays to other devices, shard by shard, asynchronously: 3.5 us."""
    return jaxlib_extension().batched_copy_array_to_devices_with_sharding


def to_device(array: Any, sharding: Any) -> Any:
    """Puts a numpy array on the one device of `sharding`, whatever `jax.transfer_guard` allows: 6 us, not 30."""
    with OwnTransfers():
        return placer(array, sharding)(array)


def placer(like: Any, sharding: Any) -> Callable[[Any], Any]:
    """Returns `jax.device_put` to the one device of `sharding` for arrays of the shape and dtype of `like`: 4 us."""
    extension = jaxlib_extension()
    aval, devices = abstract_value(like.shape, like.dtype, sharding), list(sharding.device_set)
    put, during_call = extension.batched_device_put, extension.HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL
    return lambda array: put(aval, sharding, [array], devices, True, False, during_call, True)


def to_host(array: Any) -> Any:
    """Returns `numpy.asarray` of an array on one device, whatever `jax.transfer_guard` allows."""
    import numpy as np

    with OwnTransfers():
        return np.asarray(array)


class OwnTransfers:
    """A context in which this thread may copy, whatever `jax.transfer_guard` allows.

    The guard is meant for the user's code. Enter the context once for many copies.
    """

    __slots__ = ("_kept",)

    def __enter__(self) -> None:
        state, allow = _transfer_guards()
        guard = state()
        self._kept = guard.host_to_device, guard.device_to_device, guard.device_to_host
        guard.host_to_device = guard.device_to_device = guard.device_to_host = allow

    def __exit__(self, *_: object) -> None:
        guard = _transfer_guards()[0]()
        guard.host_to_device, guard.device_to_device, guard.device_to_host = self._kept


@cache
def _transfer_guards() -> tuple[Callable[[], Any], Any]:
    """Returns a function that returns the guards of this thread, and the level that allows all."""
    from jax._src.lib import guard_lib

    return guard_lib.thread_local_state, guard_lib.TransferGuardLevel.ALLOW


def execute_noting_effects(executable: Any) -> Callable[[Sequence[Any]], Any]:
    """Returns `executable.execute_sharded` for a program with host callbacks, as `jax.jit` calls it.

    `jax.effects_barrier()` then waits for the callbacks. So does the end of Python: a callback that still runs then
    aborts the process. JAX itself waits only for the callbacks of its own thread.
    """
    from jax._src import dispatch

    devices = executable.local_devices()
    latest = _Tokens().latest

    def execute(operands: Sequence[Any]) -> Any:
        results = executable.execute_sharded(operands, with_tokens=True)
        tokens = results.consume_token()
        for number, device in enumerate(devices):
            latest[device] = token = tokens.get_token(number)
            dispatch.runtime_tokens.set_output_runtime_token(device, token)
        return results

    return execute


def file_of_callbacks() -> str:
    """Returns the file of the functions by which JAX calls host callbacks, for a look at stacks."""
    from jax._src import callback

    return str(callback.__file__)


@cache
class _Tokens:
    """The token of the last program with callbacks on each device, which the end of Python waits for."""

    def __init__(self) -> None:
        self.latest: dict[Any, Any] = {}
        atexit.register(self.wait)
        on_clear_caches(self)

    def wait(self) -> None:
        for token in self.latest.values():
            with contextlib.suppress(Exception):  # an exception of a callback becomes an error of its program's results
                token.block_until_ready()

    def cache_clear(self) -> None:
        self.wait()
        self.latest.clear()


def start_transfer_server(device: Any, host: str) -> Any:
    """Starts a server that offers arrays of the device's client to other processes, on ports of its own.

    Without explicit transport addresses transfers between processes crash.
    """
    from jax.experimental import transfer

    addresses = [f"{host}:0"] * 2
    options = {"max_num_parallel_copies": 8, "transfer_size": 1 << 20}
    return transfer.start_transfer_server(device.client, f"{host}:0", addresses, **options)


def offer(server: Any, number: int, arrays: list[Any]) -> None:
    """Calls `server.await_pull` without its walk over a tree."""
    server._await_pull_flat(number, arrays)


def pull(connection: Any, number: int, device: Any, types: list[Any]) -> list[Any]:
    """Calls `connection.pull` without its walk over a tree."""
    return connection._pull_flat(number, device.client, types)


def poison(connection: Any) -> None:
    """Makes all unfinished and all later pulls of a connection fail."""
    connection._poison_connection()


def error_array(type_: Any, message: str) -> Any:
    """Returns an array that raises `message` when it is waited for, also in a process that pulls it."""
    from jax.experimental import transfer

    return transfer.make_error_array(type_, message)


def cpu_devices(count: int) -> tuple[Any, ...]:
    """Returns `count` CPU devices of a client other than JAX's own, so that no XLA flag is needed before JAX starts.

    A client has threads, and lives as long as its devices are used. So clients are shared: one has 8 devices, and
    larger ones have 16, 32... devices.
    """
    return _cpu_client(max(8, 1 << (count - 1).bit_length()))[:count]


@cache
def _cpu_client(count: int) -> tuple[Any, ...]:
    """Returns all devices of a client, and keeps it."""
    from jaxlib import xla_client

    return tuple(xla_client.make_cpu_client(num_devices=count).devices())


def other_devices(jaxpr: Any, mesh: Any) -> str | None:
    """Returns `file:line` of the first sharding in a jaxpr over other devices than `mesh`, or in another order.

    Returns None if all shardings have the devices of `mesh`. A sharding over an abstract mesh names no devices.
    """
    from jax._src.dispatch import get_intermediate_shardings
    from jax.extend import source_info_util
    from jax.sharding import Sharding

    devices = tuple(mesh.devices.flat)
    named: Sequence[tuple[Any, Any]] = get_intermediate_shardings(jaxpr)
    for sharding, source in named:  # if a nested jit names no sharding, JAX has a placeholder object
        if isinstance(sharding, Sharding) and tuple(sharding._device_assignment) != devices:
            return source_info_util.summarize(source.source_info).partition(" ")[0].rpartition(":")[0]
    return None


def host_callbacks(lowered: Any) -> tuple[Any, ...]:
    """Returns the Python functions that a `jax.stages.Lowered` calls back, by the index in its custom calls."""
    return tuple(lowered._lowering.compile_args["host_callbacks"])


@contextlib.contextmanager
def as_passes_read() -> Generator[None]:
    """Makes JAX lower modules in the form that passes read, whatever its configuration.

    Shardings are in Shardy's dialect. Values that a function closes over are constants, not additional arguments.
    """
    from jax._src import config

    with (
        getattr(config, "use_shardy_partitioner", contextlib.nullcontext)(True),
        config.embedded_constants_max_bytes(sys.maxsize),
    ):
        yield


def numeric_settings() -> dict[str, str]:
    """Returns the JAX settings and XLA flags that may change the numbers that a function computes, by name."""
    from jax._src import cache_key, config

    traced: Any = config.trace_context_names  # jaxlibs before 0.10.2 have no such function
    # Settings that may differ between processes.
    own = ("jax_default_device", "jax_debug_key_reuse", "jax_hlo_source_file_canonicalization_regex")
    names = {*traced(), *_NUMERIC}.difference(own)
    states, values = config.config_states, config.config.values
    found = {name: str(states[name].value if name in states else values[name]) for name in names & values.keys()}
    others = cache_key.xla_flags_to_exclude_from_cache_key
    return found | {flag: value for flag, value in xla_flags().items() if flag not in others and "dump" not in flag}


_NUMERIC = (
    *("jax_compiler_enable_remat_pass", "jax_default_prng_impl", "jax_disable_most_optimizations"),
    *("jax_enable_custom_prng", "jax_exec_time_optimization_effort", "jax_memory_fitting_effort"),
    *("jax_memory_fitting_level", "jax_optimization_level"),
)
"""The settings of JAX that no trace depends on, but that change random keys or what XLA compiles."""


def trace_context() -> Any:
    """Returns a hashable value of all configuration that a trace depends on: x64, matmul precision, mesh..."""
    from jax._src import config

    return config.trace_context()


def is_traced() -> bool:
    """Whether JAX transforms this call, as inside of `jax.jit`, `jax.grad` or `jax.vmap`."""
    from jax._src import core

    return not isinstance(core.trace_ctx.trace, core.EvalTrace)


def on_clear_caches(cache: Any) -> None:
    """Makes `jax.clear_caches()` and the end of all backends call `cache.cache_clear()` while the object lives."""
    from jax._src import util

    util.register_cache(cache, repr(type(cache)))


def device_cache(function: _Function) -> _Function:
    """Returns a `functools.cache` for a function of devices or of arrays, which keeps no backend that has ended."""
    cached: Any = lru_cache(maxsize=1024)(function)
    on_clear_caches(cached)
    return cached


def add_array_property(name: str, get: Callable[[Any], Any]) -> None:
    """Gives every concrete `jax.Array` a read-only property, unless it has one of that name."""
    from jax._src.array import ArrayImpl

    if not hasattr(ArrayImpl, name):
        setattr(ArrayImpl, name, property(get))


def weakly_typed(array: Any) -> Any:
    """Returns `array` with the weak type that the result of a Python scalar has."""
    from jax._src.array import ArrayImpl

    return ArrayImpl(array.aval.update(weak_type=True), array.sharding, array._arrays, committed=array.committed)


for _name, _function in list(globals().items()):
    if inspect.isfunction(_function) and _function.__module__ == __name__:
        globals()[_name] = explained(_function)
