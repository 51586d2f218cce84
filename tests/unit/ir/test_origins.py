"""What tasks read: values of other microbatches are found though their types fit, and said for the right call."""

# pyright: reportUnknownLambdaType=false

import re
from collections.abc import Callable

import pytest
from jaxlib.mlir import ir

from jaxpp._compat import make_context
from jaxpp.ir.errors import ProgramError
from jaxpp.ir.read_program import ProgramReader

MICROBATCHES = 4


def program(operands: Callable[[int], tuple[str, str]]) -> str:
    """One mesh: `@forward_0` makes two values of each microbatch, `@backward_0` reads `operands` of it."""
    lines = [
        f"%n{k} = stablehlo.constant dense<{k}> : tensor<i32>\n"
        f"%f{k}:2 = call @forward_0(%x, %n{k}) {{jaxpp.microbatch = {k} : i64, jaxpp.stage = 0 : i64}}"
        ": (tensor<f32>, tensor<i32>) -> (tensor<f32>, tensor<f32>)"
        for k in range(MICROBATCHES)
    ]
    for k in range(MICROBATCHES):
        one, other = operands(k)
        lines.append(
            f"%b{k} = call @backward_0({one}, {other}) {{jaxpp.microbatch = {k} : i64, jaxpp.stage = 0 : i64}}"
            ": (tensor<f32>, tensor<f32>) -> tensor<f32>"
        )
    body = "\n".join(lines)
    return f"""
    module attributes {{jaxpp.meshes = 1 : i64}} {{
      func.func public @mesh_0(%x: tensor<f32> {{jaxpp.number = 0 : i64}}) -> (tensor<f32> {{jaxpp.number = 0 : i64}})
          attributes {{jaxpp.mesh = 0 : i64}} {{
        {body}
        return %b{MICROBATCHES - 1} : tensor<f32>
      }}
      func.func private @forward_0(%x: tensor<f32>, %n: tensor<i32>) -> (tensor<f32>, tensor<f32>)
          attributes {{jaxpp.kind = "forward", jaxpp.stage = 0 : i64}} {{
        return %x, %x : tensor<f32>, tensor<f32>
      }}
      func.func private @backward_0(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32>
          attributes {{jaxpp.kind = "backward", jaxpp.stage = 0 : i64}} {{
        %0 = stablehlo.BODY %b, %a : tensor<f32>
        return %0 : tensor<f32>
      }}
    }}"""


def read(operands: Callable[[int], tuple[str, str]], body: str = "multiply") -> None:
    with make_context() as context:
        ProgramReader(ir.Module.parse(program(operands).replace("BODY", body), context))


def previous(k: int) -> str:
    return f"%b{k - 1}" if k else "%x"


@pytest.mark.parametrize(
    "operands",
    [
        lambda k: (f"%f{k}#0", f"%f{k}#1"),
        lambda k: ("%x", "%x"),
        lambda k: (f"%f{k}#0", previous(k)),  # what is carried
        lambda k: (f"%f{k}#0", f"%f{k - 2}#1" if k > 1 else "%x"),  # through two carried values
        lambda k: (f"%f{k}#1", f"%f{k}#0"),  # exchanged for all microbatches: nothing tells that
    ],
)
def test_what_is_alike_for_all_microbatches(operands: Callable[[int], tuple[str, str]]) -> None:
    read(operands)


def test_sums_take_microbatches_in_any_order() -> None:
    order = [0, 2, 1, 3]
    before = {k: f"%b{order[place - 1]}" if place else "%x" for place, k in enumerate(order)}
    text = program(lambda k: (f"%f{k}#0", before[k])).replace("BODY", "add")
    calls = re.findall(r"%b\d = call .*", text)
    text = text.replace("\n".join(calls), "\n".join(calls[k] for k in order))
    with make_context() as context:
        ProgramReader(ir.Module.parse(text, context))
        carried = text.replace("stablehlo.add %b, %a", "stablehlo.multiply %b, %a")
        with pytest.raises(
            ProgramError, match="the backward of stage 0, microbatch 1 reads value 0 of the backward of"
        ):
            ProgramReader(ir.Module.parse(carried, context))


@pytest.mark.parametrize("finished", [True, False])
def test_a_sum_of_an_earlier_step_is_finished(finished: bool) -> None:
    """Two steps of two microbatches: `%b1` is the sum of the first step, and the second step reads it."""
    state = "%b1" if finished else "%b0"
    text = program(lambda k: ("%x" if k < 2 else state, "%x" if k in (0, 2) else f"%b{k - 1}"))
    text = text.replace("%0 = stablehlo.BODY %b, %a", "%1 = stablehlo.tanh %a : tensor<f32>\n%0 = stablehlo.add %b, %1")
    with make_context() as context:
        module = ir.Module.parse(text, context)
        if finished:
            ProgramReader(module)
        else:
            with pytest.raises(ProgramError, match=r"microbatch 2 reads value 0 of the backward .*, microbatch 0"):
                ProgramReader(module)


@pytest.mark.parametrize("order", [(1, 0, 3, 2), (1, 2, 3, 0), (0, 0, 0, 0), (0, 2, 1, 3), ("x", 0, 0, 0)])
def test_what_adds_a_bias_is_no_sum(order: tuple[int | str, ...]) -> None:
    """`@forward_0` only adds to its argument, as an accumulator does, and `@backward_0` reads its results."""
    text = program(lambda k: (f"%f{order[k]}#0" if order[k] != "x" else "%x", "%x")).replace("BODY", "multiply")
    text = text.replace(
        "return %x, %x :",
        "%0 = stablehlo.constant dense<1.0> : tensor<f32>\n%1 = stablehlo.add %x, %0 : tensor<f32>\nreturn %1, %0 :",
    )
    with make_context() as context, pytest.raises(ProgramError, match=r"reads (value 0|a value from outside)"):
        ProgramReader(ir.Module.parse(text, context))


@pytest.mark.parametrize(
    ("operands", "message"),
    [
        (
            lambda k: (f"%f{0 if k == 2 else k}#0", "%x"),
            "the backward of stage 0, microbatch 2 reads value 0 of the forward of stage 0, microbatch 0, expected "
            "value 0 of the forward of stage 0, microbatch 2, as for other microbatches",
        ),
        (
            lambda k: (f"%f{k}#0", "%x" if k == 1 else f"%f{k}#1"),
            "the backward of stage 0, microbatch 1 reads a value from outside of the loop, expected value 1 of the "
            "forward of stage 0, microbatch 1, as for other microbatches",
        ),
        (
            lambda k: (f"%f{k ^ 1}#0", "%x"),  # exchanged in pairs
            "the backward of stage 0, microbatch 0 reads value 0 of the forward of stage 0, microbatch 1, expected one "
            "of microbatch 0, or what an earlier one hands on",
        ),
    ],
)
def test_values_of_other_microbatches(operands: Callable[[int], tuple[str, str]], message: str) -> None:
    with pytest.raises(ProgramError) as error:
        read(operands)
    assert error.value.message == message
    assert (error.value.source or "").startswith("-:"), "the line of the call"


def test_numbers_that_are_out_of_line() -> None:
    text = program(lambda k: (f"%f{k}#0", "%x")).replace("BODY", "add")
    with make_context() as context, pytest.raises(ProgramError) as error:
        ProgramReader(ir.Module.parse(text.replace("dense<2>", "dense<7>"), context))
    assert error.value.message == (
        "the forward of stage 0, microbatch 2 reads the number 7, expected 2, as the numbers for other microbatches say"
    )
