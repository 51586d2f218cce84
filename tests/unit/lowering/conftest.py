"""A small marked model, a mesh for it, and a way to run the module of `lower`."""

# pyright: reportUnknownLambdaType=false

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jaxlib.mlir import ir

from jaxpp._compat import compile_program
from jaxpp.lowering import Lowered, MpmdMesh, mark_stage_end

Walk = Callable[[ir.Module, str], list[Any]]


class Model:
    """Three stages of tanh layers on 4 features and a loss; `mark` is the identity for the reference."""

    stages = 3

    def __init__(self, mark: Callable[..., Any]) -> None:
        self.mark = mark

    def loss(self, params: Sequence[jax.Array], microbatch: dict[str, jax.Array]) -> jax.Array:
        x = microbatch["x"]
        for w in params:
            x = self.mark(jnp.tanh(x @ w))
        return jnp.mean((x - microbatch["y"]) ** 2)

    def params(self) -> list[jax.Array]:
        return [jax.random.normal(jax.random.key(k), (4, 4)) for k in range(self.stages)]

    def batch(self, microbatches: int = 5) -> dict[str, np.ndarray]:
        random = np.random.default_rng(0)
        return {name: random.normal(size=(microbatches, 2, 4)).astype(np.float32) for name in "xy"}


@pytest.fixture
def marked() -> Model:
    return Model(mark_stage_end)


@pytest.fixture
def plain() -> Model:
    return Model(lambda x, **_: x)


@pytest.fixture(params=[("mpmd", "data"), ("data", "mpmd")], ids="-".join)
def mesh(request: pytest.FixtureRequest) -> MpmdMesh:
    return make_mesh(request.param)


@pytest.fixture
def explicit_mesh() -> MpmdMesh:
    return make_mesh(("mpmd", "data"), AxisType.Explicit)


def make_mesh(names: Sequence[str], axis_type: AxisType = AxisType.Auto) -> MpmdMesh:
    """3 meshes of 2 devices."""
    shape = [{"mpmd": 3, "data": 2}[name] for name in names]
    devices = np.array(jax.devices()[:6]).reshape(shape)
    return MpmdMesh(Mesh(devices, tuple(names), axis_types=(axis_type,) * 2), "mpmd")


@pytest.fixture
def run_module() -> Callable[..., list[np.ndarray]]:
    """Runs a lowered module, all of whose results are replicated, on the devices of one submesh."""

    def run(lowered: Lowered, args: Any, specs: Sequence[Any], submesh: int = 1) -> list[np.ndarray]:
        mesh = lowered.mpmd_mesh.unstack[submesh]
        executable = compile_program(str(lowered.module).encode(), list(mesh.devices.flat), {})
        placed = [
            jax.device_put(np.asarray(leaf), NamedSharding(mesh, spec))
            for leaf, spec in zip(jax.tree.leaves(args), specs, strict=True)
        ]
        results = executable.execute_sharded(placed).disassemble_into_single_device_arrays()
        return [np.asarray(shards[0]) for shards in results]

    return run


@pytest.fixture
def operations() -> Walk:
    """All operations of a name in a module, in order."""

    def found(module: ir.Module, name: str) -> list[Any]:
        return [op for op in walk(module.operation) if op.name == name]

    return found


def walk(op: Any) -> list[Any]:
    inner = [inner.operation for region in op.regions for block in region for inner in block]
    return [each for op in inner for each in (op, *walk(op))]
