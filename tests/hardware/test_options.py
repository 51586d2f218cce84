"""XLA's compiler for GPUs takes the options that jaxpp chooses, and those that docs/gpu.md names."""

import ast
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxpp
from jaxpp._absent import compile_only
from jaxpp._xla import GPU
from jaxpp.targets.target import Target

DOCUMENT = (Path(__file__).parents[2] / "docs" / "gpu.md").read_text(encoding="utf-8")
NAMED = [each for found in re.findall(r"`(\{\"xla_gpu_.*?\})`", DOCUMENT) for each in ast.literal_eval(found).items()]


@pytest.fixture(scope="module")
def gpus() -> Target:
    """Two GPUs, of two processes."""
    try:
        return jaxpp.target("h200", nodes=2, gpus=1)
    except ModuleNotFoundError as error:
        pytest.skip(str(error))


def compiled(gpus: Target, options: dict[str, Any]) -> str:
    """A product whose terms are summed over both GPUs, and two that each makes alone."""
    mesh = gpus.mesh((1, 2), ("mpmd", "model")).jax_mesh
    specs = P(None, "model"), P("model"), P()
    given = [jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16, sharding=NamedSharding(mesh, spec)) for spec in specs]

    def products(x: jax.Array, w: jax.Array, own: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.tanh(own @ own) @ own, x @ w

    text = jax.jit(products, out_shardings=NamedSharding(mesh, P())).lower(*given).as_text()
    return compile_only(text.encode(), list(mesh.devices.flat), options).hlo_modules()[0].to_string()


def test_what_is_chosen(gpus: Target) -> None:
    assert {f"`{option.name}={option.value}`" for option in GPU} <= set(re.findall(r"`.*?`", DOCUMENT))
    assert {option.where for option in GPU} == {"devices", "processes"}
    beside = re.search(r" all-reduce-start\((.*?) all-reduce-done\(", compiled(gpus, {}), re.DOTALL)
    assert beside is not None
    assert '"is_sync":false' in beside[1]
    assert len(re.findall(r" = bf16\S* (?:fusion|custom-call)\(", beside[1])) >= 2, "the other products run beside it"


@pytest.mark.parametrize(("name", "value"), NAMED)
def test_what_is_named(name: str, value: Any, gpus: Target) -> None:
    assert "all-reduce" in compiled(gpus, {name: value})


def test_a_name_that_there_is_not(gpus: Target) -> None:
    with pytest.raises(jax.errors.JaxRuntimeError, match="No such compile option: 'xla_gpu_no_such_option'"):
        compiled(gpus, {"xla_gpu_no_such_option": 1})
