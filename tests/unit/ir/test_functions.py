"""What functions tell of operations, which of them have a side effect, and of functions: bytecode and tables."""

import pytest
from jaxlib.mlir import ir

from jaxpp import _compat
from jaxpp.ir.attributes import argument_attributes, set_tables, tables_read_once
from jaxpp.ir.functions import body_of, bytecode_of, functions, has_side_effect, main_of, operations, reducer

CALLBACK = "stablehlo.custom_call @print(%a) {has_side_effect = true} : (tensor<f32>) -> ()"
RANDOM = "stablehlo.rng %a, %a, %n, distribution = NORMAL : (tensor<f32>, tensor<f32>, tensor<1xi64>) -> tensor<2xf32>"
LIGHT = "stablehlo.add %a, %a : tensor<f32>"
IF = """"stablehlo.if"(%p) ({{
  {inside}
  stablehlo.return
}}, {{ stablehlo.return }}) : (tensor<i1>) -> ()"""
REDUCE = """%r = "stablehlo.reduce"(%v, %a) ({{
^bb0(%x: tensor<f32>, %y: tensor<f32>):
  {inside}
  stablehlo.return %x : tensor<f32>
}}) {{dimensions = array<i64: 0>}} : (tensor<4xf32>, tensor<f32>) -> tensor<f32>"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CALLBACK, True),
        (CALLBACK.replace("true", "false"), False),
        (f"%r = {RANDOM}", True),
        # What is light by its traits has none, whatever its attributes say: it is not asked for them.
        (f"%r = {LIGHT}".replace(" :", " {has_side_effect = true} :"), False),
        # The operations in a region are asked, also where that of the region is light, as a reduce is.
        (IF.format(inside=CALLBACK), True),
        (IF.format(inside=f"%0 = {LIGHT}"), False),
        (REDUCE.format(inside=CALLBACK), True),
        (REDUCE.format(inside=f"%0 = {LIGHT}"), False),
    ],
)
def test_side_effects_are_those_of_callbacks_and_generators(text: str, expected: bool) -> None:
    arguments = "%a: tensor<f32>, %n: tensor<1xi64>, %p: tensor<i1>, %v: tensor<4xf32>"
    with _compat.make_context():
        module = ir.Module.parse(f"func.func @main({arguments}) {{ {text}\nreturn }}")
        assert has_side_effect(operations(body_of(main_of(module)))[0]) == expected


@pytest.mark.parametrize(
    ("inside", "returned", "expected"),
    [
        ("stablehlo.add %x, %y", "%0", "stablehlo.add"),
        ("stablehlo.add %y, %x", "%0", "stablehlo.add"),
        ("stablehlo.subtract %x, %y", "%0", "stablehlo.subtract"),
        ("stablehlo.subtract %y, %x", "%0", None),
        ("stablehlo.add %x, %x", "%0", None),
        ("stablehlo.add %y, %b", "%0", None),
        ("stablehlo.add %x, %y", "%x", None),
    ],
)
def test_a_reducer_combines_both_elements(inside: str, returned: str, expected: str | None) -> None:
    body = REDUCE.format(inside=f"%0 = {inside} : tensor<f32>").replace("return %x", f"return {returned}")
    with _compat.make_context():
        module = ir.Module.parse(
            f"func.func @main(%a: tensor<f32>, %b: tensor<f32>, %v: tensor<4xf32>) {{ {body}\nreturn }}"
        )
        assert reducer(operations(body_of(main_of(module)))[0]) == expected


def _only(module: ir.Module) -> ir.Operation:
    """The one function of a module."""
    (function,) = functions(module).values()
    return function


TASK = """func.func private @{name}(%a: tensor<2xf32>) -> tensor<2xf32> attributes {{jaxpp.stage = {stage} : i64}} {{
  %r = stablehlo.{op} %a, %a : tensor<2xf32> loc("{name}.py":{stage}:1)
  return %r : tensor<2xf32>
}}"""


def test_the_bytecode_of_a_function_says_what_it_does() -> None:
    tasks = ("one", 1, "add"), ("two", 2, "add"), ("three", 1, "multiply")
    with _compat.make_context():
        module = ir.Module.parse("\n".join(TASK.format(name=name, stage=stage, op=op) for name, stage, op in tasks))
        text = str(module)
        one, two, three = map(bytecode_of, functions(module).values())
        assert one == two != three
        assert str(module) == text


def test_the_bytecode_of_a_function_does_not_tell_the_order_of_uses() -> None:
    text = """func.func @f(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> {
      %0 = stablehlo.add %a, %a : tensor<f32>
      %1 = stablehlo.multiply %a, %0 : tensor<f32>
      return %1 : tensor<f32>
    }"""
    with _compat.make_context():
        module, other = ir.Module.parse(text), ir.Module.parse(text)
        argument, instead = body_of(_only(other)).arguments
        add = operations(body_of(_only(other)))[0]
        add.operands[0] = instead
        add.operands[0] = argument  # the newest use of it, which comes first
        order = [[use.owner.name for use in body_of(_only(each)).arguments[0].uses] for each in (module, other)]
        assert order[0] != order[1]
        assert bytecode_of(_only(module)) == bytecode_of(_only(other))


def test_tables_that_are_read_once_can_be_edited() -> None:
    with _compat.make_context(), tables_read_once():
        module = ir.Module.parse("func.func @f(%a: tensor<f32> {jaxpp.number = 1 : i64}) { return }")
        function = _only(module)
        entries = argument_attributes(function)
        entries[0].clear()
        assert argument_attributes(function)[0].keys() == {"jaxpp.number"}
        set_tables(function, entries)
        assert argument_attributes(function) == [{}]
