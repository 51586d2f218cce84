"""Modules of Shardy's `mpmd` dialect run on local devices, and compute what plain JAX computes."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
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
from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.pipelines import mpmd
from jaxpp.hlo_passes.program.insert_transfers import InsertTransfers
from jaxpp.hlo_passes.program.plan_buffers import PlanBuffers
from jaxpp.hlo_passes.program.verify_program import VerifyProgram
from jaxpp.hlo_passes.shardy.export_shardy_mpmd import ExportShardyMpmd
from jaxpp.hlo_passes.shardy.import_shardy_mpmd import ImportShardyMpmd
from jaxpp.ir.functions import body_of, main_of

LIT = Path(__file__).parents[2] / "lit"
TO_PROGRAM = (InsertTransfers(), PlanBuffers(), VerifyProgram())
X = np.arange(32, dtype=np.float32).reshape(4, 8) / 32
TWO = '<"m1" : <["x"=1]>>, <"m2" : <["x"=1]>>'
SHARDED = '<"m1" : <["x"=2, "y"=2]>>, <"m2" : <["x"=2, "y"=2]>>'


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
        module {{ sdy.mesh @mesh = <["x"=2, "y"=4]> func.func public @main{main} {others} }}"""
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
    """Consecutive devices for each mesh, with the mpmd axis and all axes of all meshes."""
    names = tuple(dict.fromkeys(itertools.chain(["mpmd"], *axes)))
    devices = iter(jax.devices())
    shapes = [tuple(each.get(name, 1) for name in names) for each in axes]
    return [Mesh(np.array([next(devices) for _ in range(np.prod(shape))]).reshape(shape), names) for shape in shapes]


def run(text: str, axes: Sequence[Mapping[str, int]], arguments: Sequence[Any], *passes: Pass) -> list[Any]:
    """The results, on local devices, of the module that `passes` make of a text."""
    with make_context():
        module = ir.Module.parse(text)
        run_passes(module, passes)
        program = runtime.load(module)
    return [np.asarray(each) for each in runtime.Executable(program, submeshes(axes))(arguments)]


INSIDE = ', in_shardings=[<@mesh, [{}, {"y"}]>], out_shardings=[<@mesh, [{?}, {"y", ?}]>]'
ONE = [{"x": 1}, {"x": 1}]
CASES: dict[str, tuple[str, Sequence[Mapping[str, int]], Callable[[Sequence[Any]], Any], str]] = {
    "fragments and a transfer": (
        module(f"""(%x: !m1, %y: !m2) -> (!m2, !m1) attributes {{topology = #topology}} {{
          %0 = {fragment("m1", "tanh", "%x", "!m1", "!m1", ", stage=3")}
          %1 = mpmd.transfer %0 : (!m1) -> !m2
          %2 = {fragment("m2", "multiply", "%1, %y", "!m2, !m2", "!m2")}
          return %2, %0 : !m2, !m1 }}"""),
        ONE,
        lambda a: (jnp.tanh(a[0]) * a[1], jnp.tanh(a[0])),
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
        lambda a: jnp.cos(jnp.cos(jnp.cos(a[0]) + 0.5) + 0.5) + 0.5,
        "",
    ),
    "calls with counters": (
        module(
            """(%x: !m1) -> !m1 attributes {topology = #topology} {
              %0 = mpmd.call @body(%x) {call_counter = 0 : ui32} : (!m1) -> !m1
              %1 = mpmd.call @body(%0) {call_counter = 1 : ui32} : (!m1) -> !m1
              return %1 : !m1 }""",
            others=f"""func.func private @body(%x: !m1) -> !m1 attributes {{topology = #topology}} {{
              %0 = mpmd.transfer %x : (!m1) -> !m2
              %1 = {fragment("m2", "exponential", "%0", "!m2", "!m2")}
              %2 = mpmd.transfer %1 : (!m2) -> !m1
              %3 = {fragment("m1", "tanh", "%2", "!m1", "!m1")}
              return %3 : !m1 }}""",
        ),
        ONE,
        lambda a: jnp.tanh(jnp.exp(jnp.tanh(jnp.exp(a[0])))),
        "",
    ),
    "a loop": (
        module("""(%x: !m1, %y: !m1) -> (!m1, !m1) attributes {topology = #topology} {
          %0:2 = mpmd.for (%x, %y) {iterations = 4 : ui32, unroll_factor = 2 : ui32}
              (%a: !m1, %b: !m1, %index: tensor<ui32>) {
            %i = mpmd.assign %index : (tensor<ui32>) -> !mpmd.mesh_tensor<"m1", tensor<ui32>>
            %1 = mpmd.fragment<mesh="m1", origin=["add"]> (%a, %i) (%p: !t, %n: tensor<ui32>) {
              %c = stablehlo.convert %n : (tensor<ui32>) -> tensor<f32>
              %d = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<f32>) -> !t
              %r = stablehlo.add %p, %d : !t
              mpmd.return %r : !t } : (!m1, !mpmd.mesh_tensor<"m1", tensor<ui32>>) -> !m1
            mpmd.return %b, %1 : !m1, !m1 } : !m1, !m1
          return %0#0, %0#1 : !m1, !m1 }"""),
        ONE,
        lambda a: (a[0] + 0 + 2, a[1] + 1 + 3),
        "",
    ),
    "computations that are assigned to meshes": (
        module("""(%x: !t, %y: !t) -> (!t, !t) attributes {topology = #topology} {
          %c = stablehlo.constant dense<3.0> : !t
          %0 = mpmd.broadcast %x : !t
          %1 = mpmd.named_computation<"f"> (%0, %c) (%a: !t, %b: !t) {
            %r = stablehlo.multiply %a, %b : !t
            mpmd.return %r : !t } : (!t, !t) -> !t
          %2 = mpmd.named_tensor %1 name="activation" : !t
          %3 = mpmd.named_computation<"g"(1)> (%2, %x, %y) (%a: !t, %b: !t, %d: !t) {
            %r = stablehlo.add %a, %b : !t
            %s = stablehlo.add %r, %d : !t
            mpmd.return %s : !t } : (!t, !t, !t) -> !t
          %4 = mpmd.reduce<max> %1, %3 : (!t, !t) -> !t
          %5 = mpmd.reduce<none> %4 : (!t) -> !t
          return %3, %5 : !t, !t }"""),
        ONE,
        lambda a: (3 * a[0] + a[0] + a[1], jnp.maximum(3 * a[0], 3 * a[0] + a[0] + a[1])),
        "f@m1 g@m2",
    ),
    "local values that are assigned to meshes": (
        module(f"""(%x: !t) -> (!t, !t) attributes {{topology = #topology}} {{
          %0 = mpmd.assign %x : (!t) -> !m1
          %1 = mpmd.assign {{origin = "use"}} %x : (!t) -> !m2
          %2 = {fragment("m1", "negate", "%0", "!m1", "!m1")}
          %3 = mpmd.unassign %2 : (!m1) -> !t
          %4 = mpmd.assign %3 : (!t) -> !m2
          %5 = {fragment("m2", "subtract", "%1, %4", "!m2, !m2", "!m2")}
          %6 = mpmd.unassign %5 : (!m2) -> !t
          return %6, %x : !t, !t }}"""),
        ONE,
        lambda a: (2 * a[0], a[0]),
        "",
    ),
    "constants": (
        module(
            """() -> (!m1, !m2) attributes {topology = #topology} {
          %0 = mpmd.fragment_call<mesh="m1", origin=[]> @c() : () -> !m1
          %1 = mpmd.transfer %0 : (!m1) -> !m2
          %2 = mpmd.fragment<mesh="m2", origin=[]> (%1) (%a: !t) {
            %c = stablehlo.constant dense<2.0> : !t
            %r = stablehlo.multiply %a, %c : !t
            mpmd.return %r : !t } : (!m2) -> !m2
          return %0, %2 : !m1, !m2 }""",
            others="""func.func private @c() -> !t attributes {mesh_shape = #sdy.mesh<["x"=1]>} {
            %c = stablehlo.constant dense<3.0> : !t
            return %c : !t }""",
        ),
        ONE,
        lambda _: (np.full((4, 8), 3.0), np.full((4, 8), 6.0)),
        "",
    ),
    "the memory of the host": (
        module(f"""(%x: !h1) -> (!h1, !h1) attributes {{topology = #topology}} {{
          %0 = mpmd.transfer %x : (!h1) -> !m1
          %1 = {fragment("m1", "negate", "%0", "!m1", "!m1")}
          %2 = mpmd.transfer %1 : (!m1) -> !h1
          return %2, %x : !h1, !h1 }}"""),
        ONE,
        lambda a: (-a[0], a[0]),
        "",
    ),
    "shardings": (
        module(
            f"""(%x: !rows1, %y: !columns2) -> (!m2, !rows1) attributes {{topology = #topology}} {{
          %0 = {fragment("m1", "tanh", "%x", "!rows1", "!rows1", INSIDE)}
          %1 = mpmd.transfer %0 : (!rows1) -> !rows2
          %2 = mpmd.transfer %1 : (!rows2) -> !columns2
          %3 = {fragment("m2", "add", "%2, %y", "!columns2, !columns2", "!m2")}
          return %3, %0 : !m2, !rows1 }}""",
            topology=SHARDED,
        ),
        [{"x": 2, "y": 2}] * 2,
        lambda a: (jnp.tanh(a[0]) + a[1], jnp.tanh(a[0])),
        "",
    ),
    "attributes that are hints": (
        module(
            """(%x: !m1 {tf.aliasing_output = 0 : i32, mhlo.layout_mode = "auto", mhlo.memory_kind = "device",
                sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
                -> (!m1 {mhlo.layout_mode = "default"}, !m2) attributes {topology = #topology} {
              %0 = mpmd.fragment<mesh="m1", origin=["f"(1), "g"], stage=1> (%x, %x)
                  {call_counter = 2 : ui32, remat, reserved_hbm_bytes = 256 : i64,
                   arg_attrs = [{tf.aliasing_output = 0 : i32}, {}]} (%a: !t, %b: !t) {
                %r = stablehlo.add %a, %b : !t
                %s = sdy.sharding_constraint %r <@mesh, [{}, {"y"}]> : !t
                mpmd.return %s : !t } : (!m1, !m1) -> !m1
              %1 = mpmd.transfer %0 : (!m1) -> !m2
              %2 = mpmd.transfer %1 : (!m2) -> !m1
              %3 = mpmd.fragment<mesh="m1", origin=[]> (%2) (%a: !t) { mpmd.return %a : !t } : (!m1) -> !m1
              return %3, %1 : !m1, !m2 }""",
            topology=SHARDED,
        ),
        [{"x": 2, "y": 2}] * 2,
        lambda a: (2 * a[0], 2 * a[0]),
        "",
    ),
    "meshes of other sizes": (
        module(
            f"""(%x: !rows1) -> !rows2 attributes {{topology = #topology}} {{
          %0 = {fragment("m1", "tanh", "%x", "!rows1", "!rows1")}
          %1 = mpmd.transfer %0 : (!rows1) -> !rows2
          %2 = {fragment("m2", "negate", "%1", "!rows2", "!rows2")}
          return %2 : !rows2 }}""",
            topology='<"m1" : <["x"=2]>>, <"m2" : <["x"=4]>>',
        ),
        [{"x": 2}, {"x": 4}],
        lambda a: -jnp.tanh(a[0]),
        "",
    ),
    "meshes of other axes": (
        module(
            f"""(%x: !rows1) -> !columns2 attributes {{topology = #topology}} {{
          %0 = {fragment("m1", "tanh", "%x", "!rows1", "!rows1")}
          %1 = mpmd.transfer %0 : (!rows1) -> !columns2
          %2 = {fragment("m2", "negate", "%1", "!columns2", "!columns2")}
          return %2 : !columns2 }}""",
            topology='<"m1" : <["x"=2]>>, <"m2" : <["y"=4]>>',
        ),
        [{"x": 2}, {"y": 4}],
        lambda a: -jnp.tanh(a[0]),
        "",
    ),
}


ROUND_TRIP = (ExportShardyMpmd(), ImportShardyMpmd())


@pytest.mark.parametrize("trip", [(), ROUND_TRIP, ROUND_TRIP * 2], ids=["", "there and back", "twice"])
@pytest.mark.parametrize("name", CASES)
def test_an_imported_module_computes_what_plain_jax_computes(name: str, trip: tuple[Pass, ...]) -> None:
    text, axes, plain, assignment = CASES[name]
    count = text.partition("@main(")[2].partition("->")[0].count("%")
    arguments = [X + number for number in range(count)]
    expected = plain(arguments)
    results = run(text, axes, arguments, ImportShardyMpmd(assignment), *trip, *TO_PROGRAM)
    for result, wanted in zip(results, expected if isinstance(expected, tuple) else [expected], strict=True):
        np.testing.assert_allclose(result, wanted, rtol=2e-6)


@pytest.mark.parametrize("schedule", ["", "zb-h1", "gpipe"])
def test_a_training_step_computes_the_same_after_it_was_there_and_back(schedule: str) -> None:
    text = (LIT / "Inputs" / "gpt_data.mlir").read_text(encoding="utf-8")
    passes = mpmd(schedule, 2 if schedule else 0)
    placed = [type(each) for each in passes].index(InsertTransfers)
    with make_context():
        parsed = ir.Module.parse(text)
        types = [ir.RankedTensorType(value.type) for value in body_of(main_of(parsed)).arguments]
        shapes = [(tuple(type_.shape), str(type_.element_type)) for type_ in types]
    random = np.random.default_rng(0)
    arguments = [
        random.integers(0, 4, shape, np.int32) if dtype == "i32" else random.normal(0, 0.1, shape).astype(np.float32)
        for shape, dtype in shapes
    ]
    axes = [{"data": 2}] * 2
    wanted = run(text, axes, arguments, *passes)
    found = run(text, axes, arguments, *passes[:placed], *ROUND_TRIP, *passes[placed:])
    for one, other in zip(wanted, found, strict=True):
        np.testing.assert_array_equal(one, other)
