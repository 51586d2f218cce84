"""What a module of others may not have: an unknown attribute of jaxpp, and shardings that no pass reads."""

import pytest
from jaxlib.mlir import ir

from jaxpp._compat import make_context
from jaxpp.ir import attributes as at
from jaxpp.ir import gate
from jaxpp.ir.errors import PassError
from jaxpp.ir.gate import LOWER_WITH_SHARDY, check_module

MODULE = """
module attributes {jaxpp.meshes = 2 : i64, other.name = 1 : i64} {
  func.func public @main(%x: tensor<4xf32> {jaxpp.blocks = array<i64: 0, 1>, jax.buffer_donor = true})
      -> (tensor<4xf32> {jaxpp.feeds = 0 : i64, jax.result_info = "x"}) attributes {jaxpp.kind = "forward"} {
    %0 = stablehlo.tanh %x {jaxpp.task = "forward_0"} : tensor<4xf32>
    %1 = "stablehlo.case"(%i) ({
      %2 = stablehlo.sine %0 {jaxpp.devices = 0 : i64} : tensor<4xf32>
      stablehlo.return %2 : tensor<4xf32>
    }) : (tensor<i32>) -> tensor<4xf32>
    return %1 : tensor<4xf32>
  }
  func.func private @elsewhere(tensor<4xf32> {jaxpp.number = 0 : i64})
}
""".replace("    %0 =", "    %i = stablehlo.constant dense<0> : tensor<i32>\n    %0 =")
SHARDY = f"{LOWER_WITH_SHARDY}, or begin with the pass import-shardings"


def refusal(old: str = "", new: str = "") -> tuple[str, str]:
    """(message, hint) for the module with a change."""
    assert old in MODULE
    with make_context() as context:
        module = ir.Module.parse(MODULE.replace(old, new, 1), context)
        with pytest.raises(PassError) as error:
            check_module(module)
        return error.value.message, error.value.hint


def test_what_is_known_passes() -> None:
    with make_context() as context:
        check_module(ir.Module.parse(MODULE, context))
    assert at.LOOP in at.OURS
    assert all(name.count(".") == 1 for name in at.OURS)


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ("jaxpp.meshes", "jaxpp.mesches", "a builtin.module"),
        ("jaxpp.blocks", "jaxpp.block_s", "argument 0 of @main"),
        ("jaxpp.feeds", "jaxpp.feed", "result 0 of @main"),
        ("jaxpp.kind", "jaxpp.kinds", "a func.func"),
        ("jaxpp.task", "jaxpp.tasks", "a stablehlo.tanh"),
        ("jaxpp.devices", "jaxpp.device_s", "a stablehlo.sine"),
        ("jaxpp.number", "jaxpp.numbers", "argument 0 of @elsewhere"),
        ("jaxpp.number", "jaxp.number", "argument 0 of @elsewhere"),
    ],
)
def test_unknown_attributes_anywhere(old: str, new: str, where: str) -> None:
    assert refusal(old, new) == (f"{where} has an unknown attribute {new}", f"did you mean {old}?")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("jaxpp.meshes = 2", "jaxpp.mesh = 2", "a builtin.module has jaxpp.mesh, expected on: function, operation"),
        (
            "jaxpp.blocks = array<i64: 0, 1>",
            "jaxpp.feeds = 0",
            "argument 0 of @main has jaxpp.feeds, expected on: result",
        ),
        ("jaxpp.task", "jaxpp.kind", "a stablehlo.tanh has jaxpp.kind, expected on: function"),
        ("jaxpp.kind", "jaxpp.task", "a func.func has jaxpp.task, expected on: argument, result, operation"),
        ('jaxpp.kind = "forward"', "jaxpp.stage = [0]", "a func.func has jaxpp.stage = [0], expected a number"),
        (
            "jaxpp.blocks = array<i64: 0, 1>",
            "jaxpp.blocks = 1",
            "argument 0 of @main has jaxpp.blocks = 1 : i64, expected ",
        ),
        (
            "jaxpp.devices = 0 : i64",
            "jaxpp.per_run = 0 : i64",
            "a stablehlo.sine has jaxpp.per_run = 0 : i64, expected no value",
        ),
    ],
)
def test_known_attributes_of_another_place_or_form(old: str, new: str, message: str) -> None:
    assert refusal(old, new)[0].startswith(message)


def test_each_attribute_has_a_rule() -> None:
    assert at.OURS <= gate.RULES.keys()


def test_an_unknown_attribute_like_no_other() -> None:
    message = "a stablehlo.tanh has an unknown attribute jaxpp.xyzzy"
    assert refusal("jaxpp.task", "jaxpp.xyzzy") == (message, "docs/ir.md lists all attributes of jaxpp")


@pytest.mark.parametrize(
    ("entry", "hint"),
    [
        ("lenght = 3 : i64", "did you mean 'length'?"),
        ("xyzzy = 3 : i64", "it may have indices, inferred, length, schedule, slices, stages, starts, steps"),
    ],
)
def test_unknown_entries_of_the_loop(entry: str, hint: str) -> None:
    message = f"jaxpp.microbatch_loop has an unknown entry '{entry.partition(' ')[0]}'"
    assert refusal('jaxpp.task = "forward_0"', f"jaxpp.microbatch_loop = {{{entry}}}") == (message, hint)


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("jaxpp.blocks = array<i64: 0, 1>", 'mhlo.sharding = "{replicated}"', "mhlo.sharding"),
        ("jaxpp.feeds = 0 : i64", 'mhlo.sharding = "{devices=[2]<=[2]}"', "mhlo.sharding"),
        ('jaxpp.task = "forward_0"', 'mhlo.sharding = "{devices=[2]<=[2]}"', "mhlo.sharding"),
        ("other.name = 1 : i64", 'mhlo.spmd_output_sharding = "{replicated}"', "mhlo.spmd_output_sharding"),
    ],
)
def test_shardings_of_gspmd(old: str, new: str, what: str) -> None:
    message = f"a sharding of GSPMD ({what}), expected sdy.sharding: XLA would shard by it, jaxpp would not"
    assert refusal(old, new) == (message, SHARDY)


@pytest.mark.parametrize("target", ["Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"])
def test_custom_calls_of_gspmd(target: str) -> None:
    new = f"stablehlo.custom_call @{target}(%x) : (tensor<4xf32>) -> tensor<4xf32>"
    message, hint = refusal('stablehlo.tanh %x {jaxpp.task = "forward_0"} : tensor<4xf32>', new)
    assert message.startswith(f"a sharding of GSPMD (custom call @{target}), expected sdy.sharding: ")
    assert hint == SHARDY


def test_shardings_as_jax_exports_them() -> None:
    new = 'mhlo.frontend_attributes = {xla.sdy.meshes = "{}"}'
    message, hint = refusal("other.name = 1 : i64", new)
    assert message.startswith("shardings as XLA takes them (xla.sdy.* in mhlo.frontend_attributes), expected ")
    assert hint == SHARDY


@pytest.mark.parametrize("value", ["dense<(0.0, 1.0)> : tensor<2xcomplex<f32>>", "loc(unknown)"])
@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ('jaxpp.task = "forward_0"', "my.value = {z}", "'my.value' of stablehlo.tanh"),
        ('jaxpp.task = "forward_0"', "values = [@elsewhere, {z}]", "'values' of stablehlo.tanh"),
        ('jaxpp.task = "forward_0"', "my.entries = {{a = [{z}]}}", "'my.entries' of stablehlo.tanh"),
        ("jax.buffer_donor = true", "my.value = {z}", "'arg_attrs' of func.func"),
        ('jax.result_info = "x"', "my.value = {z}", "'res_attrs' of func.func"),
        ("dense<0> : tensor<i32>", "{{value.of = {z}}} dense<0> : tensor<i32>", "'value.of' of stablehlo.constant"),
        ('jaxpp.kind = "forward"', "my.value = {z}", "'my.value' of func.func"),
        ("other.name = 1 : i64", "other.name = {z}", "'other.name' of builtin.module"),
    ],
)
def test_what_jaxlib_cannot_read(old: str, new: str, what: str, value: str) -> None:
    hint = "leave it out: a location, or complex numbers that are no constant"
    assert refusal(old, new.format(z=value)) == (f"jaxlib can't read the attribute {what}", hint)
