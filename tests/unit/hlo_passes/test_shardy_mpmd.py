"""Modules of Shardy's `mpmd` dialect run on local devices, and compute what plain JAX computes."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jaxlib.mlir import ir

from jaxpp import runtime
from jaxpp._compat import make_context
from jaxpp.hlo_passes import run_passes
from jaxpp.hlo_passes.program.insert_transfers import InsertTransfers
from jaxpp.hlo_passes.program.plan_buffers import PlanBuffers
from jaxpp.hlo_passes.program.verify_program import VerifyProgram
from jaxpp.hlo_passes.shardy.import_shardy_mpmd import ImportShardyMpmd

TO_PROGRAM = (InsertTransfers(), PlanBuffers(), VerifyProgram())
X = np.arange(32, dtype=np.float32).reshape(4, 8) / 32
TWO = '<"m1" : <["x"=1]>>, <"m2" : <["x"=1]>>'
SHARDED = '<"m1" : <["x"=2]>>, <"m2" : <["x"=2]>>'


def module(main: str, *, topology: str = TWO, others: str = "") -> str:
    """A module whose `@main` is on the meshes m1 and m2. `!m1` and `!m2` are tensors of the shape of `X` there."""
    text = f"""
        !m1 = !mpmd.mesh_tensor<"m1", tensor<4x8xf32>>
        !m2 = !mpmd.mesh_tensor<"m2", tensor<4x8xf32>>
        !h1 = !mpmd.mesh_tensor<"m1", tensor<4x8xf32>, memory_kind="pinned_host">
        !rows1 = !mpmd.mesh_tensor<"m1", tensor<4x8xf32>, sharding=<@mesh, [{{"x"}}, {{?}}]>>
        !rows2 = !mpmd.mesh_tensor<"m2", tensor<4x8xf32>, sharding=<@mesh, [{{"x"}}, {{}}]>>
        !columns2 = !mpmd.mesh_tensor<"m2", tensor<4x8xf32>, sharding=<@mesh, [{{}}, {{"y"}}]>>
        !t = tensor<4x8xf32>
        #topology = #mpmd.topology<{topology}>
        module {{ func.func public @main{main} {others} }}"""
    return text


def fragment(mesh: str, operation: str, operands: str, types: str, result: str, attributes: str = "") -> str:
    """A fragment that applies one operation of StableHLO to its operands."""
    names = [f"%a{number}" for number, _ in enumerate(operands.split(","))]
    arguments = ", ".join(f"{name}: !t" for name in names)
    head = f'mpmd.fragment<mesh="{mesh}", origin=["{operation}"]{attributes}> ({operands}) ({arguments})'
    return f"""{head} {{
        %r = stablehlo.{operation} {", ".join(names)} : !t
        mpmd.return %r : !t }} : ({types}) -> {result}"""


def submeshes(axes: Sequence[Mapping[str, int]]) -> list[Mesh]:
    """Consecutive devices for each mesh, with all axes of all meshes."""
    names = tuple(dict.fromkeys(itertools.chain(*axes)))
    devices = iter(jax.devices())
    shapes = [tuple(each.get(name, 1) for name in names) for each in axes]
    return [Mesh(np.array([next(devices) for _ in range(np.prod(shape))]).reshape(shape), names) for shape in shapes]


def run(text: str, axes: Sequence[Mapping[str, int]], arguments: Sequence[Any], assignment: str = "") -> list[Any]:
    """The results of an imported module on local devices."""
    with make_context():
        parsed = ir.Module.parse(text)
        run_passes(parsed, (ImportShardyMpmd(assignment), *TO_PROGRAM))
        program = runtime.load(parsed)
    return [np.asarray(each) for each in runtime.Executable(program, submeshes(axes))(arguments)]


ONE = [{"x": 1}, {"x": 1}]
CASES: dict[str, tuple[str, Sequence[Mapping[str, int]], Callable[..., Any], str]] = {
    "fragments and a transfer": (
        module(f"""(%x: !m1, %y: !m2) -> (!m2, !m1) attributes {{topology = #topology}} {{
          %0 = {fragment("m1", "tanh", "%x", "!m1", "!m1", ", stage=3")}
          %1 = mpmd.transfer %0 : (!m1) -> !m2
          %2 = {fragment("m2", "multiply", "%1, %y", "!m2, !m2", "!m2")}
          return %2, %0 : !m2, !m1 }}"""),
        ONE,
        lambda x, y: (jnp.tanh(x) * y, jnp.tanh(x)),
        "",
    ),
    "calls of one function on two meshes": (
        module(
            """(%x: !m1) -> !m2 attributes {topology = #topology} {
              %0 = mpmd.fragment_call<mesh="m1", origin=["f"]> @f(%x) : (!m1) -> !m1
              %1 = mpmd.fragment_call<mesh="m1", origin=["f"(1)]> @f(%0) {call_counter = 1 : ui32} : (!m1) -> !m1
              %2 = mpmd.transfer %1 : (!m1) -> !m2
              %3 = mpmd.fragment_call<mesh="m2", origin=[]> @f(%2) : (!m2) -> !m2
              return %3 : !m2 }""",
            others="""func.func @f(%x: !t) -> !t attributes {mesh_shape = #sdy.mesh<["x"=1]>} {
              %c = stablehlo.constant dense<0.5> : !t
              %0 = func.call @helper(%x) : (!t) -> !t
              %1 = stablehlo.add %0, %c : !t
              return %1 : !t }
            func.func private @helper(%x: !t) -> !t { %0 = stablehlo.cosine %x : !t
              return %0 : !t }""",
        ),
        ONE,
        lambda x: jnp.cos(jnp.cos(jnp.cos(x) + 0.5) + 0.5) + 0.5,
        "",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_an_imported_module_computes_what_plain_jax_computes(name: str) -> None:
    text, axes, plain, assignment = CASES[name]
    count = text.partition("@main(")[2].partition("->")[0].count("%")
    arguments = [X + number for number in range(count)]
    expected = plain(*arguments)
    results = run(text, axes, arguments, assignment)
    for result, wanted in zip(results, expected if isinstance(expected, tuple) else [expected], strict=True):
        np.testing.assert_allclose(result, wanted, rtol=2e-6)
