"""Values as sums of scaled terms, operation by operation, and against what JAX computes."""

# pyright: reportUnknownLambdaType=false

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxlib.mlir import ir

from jaxpp import _compat
from jaxpp.ir.functions import body_of, main_of, terminator
from jaxpp.ir.linear_terms import Linear, Scales, number_of, terms
from jaxpp.ir.values import defining_op, viewed

MESH = 'sdy.mesh @mesh = <["mpmd"=1, "data"=2, "model"=2]>'


def terms_of(text: str, *, around: bool = False) -> dict[str, Scales]:
    """Returns the terms of the value that is returned: arguments by their numbers, others by their operations."""
    with _compat.make_context(), ir.Location.unknown():
        arguments = "%x: tensor<2x2xf32>, %y: tensor<2x2xf32>, %i: tensor<i32>"
        body = f"func.func @main({arguments}) -> tensor<2x2xf32> {{ {text.replace('{t}', 'tensor<2x2xf32>')} }}"
        module = ir.Module.parse(f"module attributes {{mhlo.num_partitions = 4 : i32}} {{ {MESH}\n {body} }}")
        linear, end = Linear(module), terminator(body_of(main_of(module)))
        sums = body_of(main_of(module)).arguments[0]
        parts = partial(linear.around, has_terms=lambda value: viewed(value) == sums) if around else linear.in_task
        found = terms(end.operands[0], parts)  # pyright: ignore[reportArgumentType]  # values alone
        return {_name(term): scales for term, scales in found.items()}  # pyright: ignore[reportArgumentType]  # values alone


def _name(value: ir.Value) -> str:
    op = defining_op(value)
    return str(ir.BlockArgument(value).arg_number) if op is None else op.name.removeprefix("stablehlo.")


CONVERTED = (
    "%1 = stablehlo.convert %x : ({t}) -> tensor<2x2xbf16>\n%0 = stablehlo.convert %1 : (tensor<2x2xbf16>) -> {t}"
)
CONSTANT = "%c = stablehlo.constant dense<4.0> : {t}\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%0 = stablehlo.add %x, %y : {t}", {"0": 1, "1": 1}),
        ("%0 = stablehlo.add %x, %x : {t}", {"0": 2}),
        ("%0 = stablehlo.subtract %x, %y : {t}", {"0": 1, "1": -1}),
        ("%0 = stablehlo.negate %x : {t}", {"0": -1}),
        (CONSTANT + "%0 = stablehlo.multiply %x, %c : {t}", {"0": 4}),
        (CONSTANT + "%0 = stablehlo.multiply %c, %x : {t}", {"0": 4}),
        (CONSTANT + "%0 = stablehlo.divide %x, %c : {t}", {"0": 0.25}),
        (CONSTANT + "%0 = stablehlo.divide %c, %x : {t}", {"divide": 1}),
        ("%0 = stablehlo.multiply %x, %y : {t}", {"multiply": 1}),
        ("%0 = stablehlo.transpose %x, dims = [1, 0] : ({t}) -> {t}", {"0": 1}),
        ("%0 = stablehlo.reverse %x, dims = [1] : {t}", {"0": 1}),
        ("%0:2 = stablehlo.optimization_barrier %y, %x : {t}, {t}", {"1": 1}),
        (CONVERTED, {"0": 1}),
        (CONVERTED.replace("bf16", "i32"), {"convert": 1}),
        ("%0 = stablehlo.tanh %x : {t}", {"tanh": 1}),
        ("%0 = stablehlo.maximum %x, %y : {t}", {"maximum": 1}),
        ("%0 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0] : ({t}, {t}) -> {t}", {"dot_general": 1}),
    ],
)  # fmt: skip
def test_the_terms_of_an_operation(text: str, expected: dict[str, float]) -> None:
    assert terms_of(f"{text}\nreturn %0{'#0' if '%0:2' in text else ''} : {{t}}") == {
        name: {(): scale} for name, scale in expected.items()
    }


REDUCE = "%z = stablehlo.constant dense<0.0> : tensor<f32>\n" + (
    "%r = stablehlo.reduce(%x init: %z) applies stablehlo.add across dimensions = [0] : "
    "({t}, tensor<f32>) -> tensor<2xf32>\n"
    "%0 = stablehlo.broadcast_in_dim %r, dims = [1] : (tensor<2xf32>) -> {t}"
)
PIECES = (
    "%a = stablehlo.slice %x [0:1, 0:2] : ({t}) -> tensor<1x2xf32>\n"
    "%b = stablehlo.slice %y [0:1, 0:2] : ({t}) -> tensor<1x2xf32>\n"
)


@pytest.mark.parametrize(
    ("text", "in_task", "around"),
    [
        (REDUCE, {"reduce": 1}, {"0": 1}),
        (REDUCE.replace("stablehlo.add", "stablehlo.maximum"), {"reduce": 1}, {"reduce": 1}),
        (
            PIECES + "%0 = stablehlo.concatenate %a, %b, dim = 0 : (tensor<1x2xf32>, tensor<1x2xf32>) -> {t}",
            {"concatenate": 1},
            {"0": 1, "1": 1},
        ),
        (
            PIECES + "%0 = stablehlo.dynamic_update_slice %x, %b, %i, %i : ({t}, tensor<1x2xf32>, tensor<i32>, "
            "tensor<i32>) -> {t}",
            {"dynamic_update_slice": 1},
            {"0": 1, "1": 1},
        ),
    ],
)
def test_rows_are_terms_in_a_task_and_linear_around_the_loop(
    text: str, in_task: dict[str, float], around: dict[str, float]
) -> None:
    for expected, is_around in ((in_task, False), (around, True)):
        found = terms_of(f"{text}\nreturn %0 : {{t}}", around=is_around)
        assert found == {name: {(): scale} for name, scale in expected.items()}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%0 = stablehlo.multiply %x, %y : {t}", {"0": {("a value",): 1}}),
        ("%0 = stablehlo.multiply %y, %x : {t}", {"0": {("a value",): 1}}),
        ("%0 = stablehlo.multiply %y, %y : {t}", {"multiply": {(): 1}}),
        ("%0 = stablehlo.multiply %x, %x : {t}", {"multiply": {(): 1}}),
        ("%0 = stablehlo.divide %x, %y : {t}", {"0": {("a value",): 1}}),
        ("%0 = stablehlo.divide %y, %x : {t}", {"divide": {(): 1}}),
        ("%b = stablehlo.compare LT, %x, %y : ({t}, {t}) -> tensor<2x2xi1>\n"
         "%0 = stablehlo.select %b, %x, %y : tensor<2x2xi1>, {t}", {"0": {("a value",): 1}}),
        ("%1 = stablehlo.multiply %x, %y : {t}\n%2 = stablehlo.add %1, %x : {t}\n%0 = stablehlo.negate %2 : {t}",
         {"0": {("a value",): -1, (): -1}}),
    ],
)  # fmt: skip
def test_a_sum_times_a_value_is_marked(text: str, expected: dict[str, Scales]) -> None:
    assert terms_of(f"{text}\nreturn %0 : {{t}}", around=True) == expected


@pytest.mark.parametrize(
    ("groups", "axes"),
    [
        ("[[0, 2], [1, 3]]", ("data",)),
        ("[[0, 1], [2, 3]]", ("model",)),
        ("[[0, 1, 2, 3]]", ("data", "model")),
        ("[[0, 3], [1, 2]]", ("devices",)),
    ],
)
def test_a_sum_over_devices_names_its_axes(groups: str, axes: tuple[str, ...]) -> None:
    rows = groups.count("], [") + 1
    shape = f"{rows}x{4 // rows}"

    def text(*names: str) -> str:
        ops = ""
        for number, name in enumerate(names):
            ops += (
                f'%{number + 1} = "stablehlo.all_reduce"({f"%{number}" if number else "%x"}) '
                f"<{{replica_groups = dense<{groups}> : tensor<{shape}xi64>}}> ({{\n"
                f"^bb0(%l: tensor<f32>, %r: tensor<f32>):\n%n = stablehlo.{name} %l, %r : tensor<f32>\n"
                "stablehlo.return %n : tensor<f32>\n}) : ({t}) -> {t}\n"
            )
        return f"{ops}return %{len(names)} : {{t}}"

    assert terms_of(text("add")) == {"0": {axes: 1}}
    assert terms_of(text("add", "add")) == {"0": {tuple(sorted(axes * 2)): 1}}
    assert terms_of(text("maximum")) == {"all_reduce": {(): 1}}


def test_the_number_that_a_value_is() -> None:
    with _compat.make_context(), ir.Location.unknown():
        text = """func.func @main(%x: tensor<f32>) -> (tensor<2xf32>, tensor<2xf32>, tensor<f32>, tensor<2xf32>) {
            %0 = stablehlo.constant dense<3.0> : tensor<f32>
            %1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<2xf32>
            %2 = stablehlo.constant dense<[1.0, 2.0]> : tensor<2xf32>
            %3 = stablehlo.constant dense<0.0> : tensor<f32>
            %4 = stablehlo.divide %0, %3 : tensor<f32>
            %5 = stablehlo.multiply %1, %1 : tensor<2xf32>
            return %1, %2, %4, %5 : tensor<2xf32>, tensor<2xf32>, tensor<f32>, tensor<2xf32>
        }"""
        module = ir.Module.parse(text)
        main = main_of(module)
        assert [number_of(value) for value in terminator(body_of(main)).operands] == [3.0, None, None, 9.0]
        assert number_of(body_of(main).arguments[0]) is None


STEPS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "doubled": lambda x: x + x,
    "negated": lambda x: -x,
    "times 3": lambda x: x * 3,
    "by 4": lambda x: x / 4,
    "turned": lambda x: x.T,
    "flat": lambda x: x.reshape(-1)[::-1].reshape(2, 2),
    "less": lambda x: 0.5 * x - x,
    "in bfloat16": lambda x: x.astype(jnp.bfloat16).astype(jnp.float32),
    "copied": lambda x: jax.lax.optimization_barrier((x, x))[1],
}


@settings(max_examples=10, deadline=None)
@given(st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=6))
def test_what_is_typed_linear_is_linear_with_its_factor(names: list[str]) -> None:
    def function(x: jax.Array) -> jax.Array:
        for name in names:
            x = STEPS[name](x)
        return x

    ones, other = jnp.ones((2, 2)), jnp.arange(4.0).reshape(2, 2)
    module = jax.jit(function).lower(ones).compiler_ir()
    assert isinstance(module, ir.Module)
    with module.context, ir.Location.unknown():
        found = terms(terminator(body_of(main_of(module))).operands[0], Linear(module).in_task)
        ((term, scales),) = found.items()
        assert isinstance(term, ir.Value)
        assert defining_op(term) is None
    np.testing.assert_allclose(function(ones), np.full((2, 2), scales[()]), rtol=1e-2)
    np.testing.assert_allclose(function(ones + other), function(ones) + function(other), rtol=1e-2)
