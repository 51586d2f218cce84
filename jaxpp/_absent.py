"""Absent devices, for which programs can be compiled but not run: a part of `_compat.py`."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from jaxpp._compat import compile_options, jaxlib_extension, make_context
from jaxpp._versions import explained
from jaxpp._xla import module_for_xla


@explained
def compile_only_cpu_devices(count: int, name: str = "cpu") -> tuple[Any, ...]:
    """Returns `count` CPU devices of a client of their own, which count as absent: `is_present` is false for them.

    Another `name` gets another client.
    """
    return _absent_cpus(count, name)


@cache
def _absent_cpus(count: int, name: str) -> tuple[Any, ...]:  # the name is a key of the cache
    from jaxlib import xla_client

    devices = tuple(xla_client.make_cpu_client(num_devices=count).devices())
    _absent_clients.append(devices[0].client)
    return devices


_absent_clients: list[Any] = []


@explained
def is_present(device: Any) -> bool:
    """Whether a device can run programs. A device of a topology can't: programs can only be compiled for it."""
    client = device.client
    return not (
        isinstance(client, jaxlib_extension().CompileOnlyPyClient) or any(client is each for each in _absent_clients)
    )


@explained
def compile_only(
    bytecode: bytes, devices: Sequence[Any], compiler_options: Mapping[str, Any], host_callbacks: Sequence[Any] = ()
) -> Any:
    """Compiles a module with `@main`, without JAX's persistent cache.

    Returns an `Executable`, which can't run, for devices that are absent.
    """
    client, device_list = devices[0].client, jaxlib_extension().DeviceList(tuple(devices))
    options = compile_options(devices, compiler_options)
    with make_context():
        module = module_for_xla(bytecode)
        if isinstance(client, jaxlib_extension().CompileOnlyPyClient):
            return client.compile(module, device_list, options)
        return client.compile_and_load(module, device_list, options, list(host_callbacks))


@explained
def module_costs(executable: Any) -> dict[str, float]:
    """Returns XLA's cost analysis of an executable's modules on each device, even if its own compiler has none."""
    import jax

    client = jax.local_devices(backend="cpu")[0].client
    costs: dict[str, float] = {}
    for module in executable.hlo_modules():
        for name, value in jaxlib_extension().hlo_module_cost_analysis(client, module).items():
            costs[name] = costs.get(name, 0.0) + value
    return costs
