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
from jaxpp.planning.target import Target

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
    """A product whose terms are summed over both GPUs."""
    mesh = gpus.mesh((1, 2), ("mpmd", "model")).jax_mesh
    x = jax.ShapeDtypeStruct((128, 128), jnp.bfloat16, sharding=NamedSharding(mesh, P(None, "model")))
    w = jax.ShapeDtypeStruct((128, 128), jnp.bfloat16, sharding=NamedSharding(mesh, P("model")))
    text = jax.jit(jnp.dot, out_shardings=NamedSharding(mesh, P())).lower(x, w).as_text()
    return compile_only(text.encode(), list(mesh.devices.flat), options).hlo_modules()[0].to_string()


def test_what_is_chosen(gpus: Target) -> None:
    assert {f"`{option.name}={option.value}`" for option in GPU} <= set(re.findall(r"`.*?`", DOCUMENT))
    assert {option.where for option in GPU} == {"devices", "processes"}
    assert "all-reduce-start" in compiled(gpus, {})
    assert "all-reduce-start" not in compiled(gpus, {GPU[0].name: False})


@pytest.mark.parametrize(("name", "value"), NAMED)
def test_what_is_named(name: str, value: Any, gpus: Target) -> None:
    assert "all-reduce" in compiled(gpus, {name: value})


def test_a_name_that_there_is_not(gpus: Target) -> None:
    with pytest.raises(jax.errors.JaxRuntimeError, match="No such compile option: 'xla_gpu_no_such_option'"):
        compiled(gpus, {"xla_gpu_no_such_option": 1})
