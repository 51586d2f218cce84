"""How loops count."""

import pytest
from jaxlib.mlir import ir

from jaxpp._compat import make_context
from jaxpp.ir.constant_arrays import Constants
from jaxpp.ir.counted import affine, counter_of_test, counters, line, never_ends, trips
from jaxpp.ir.functions import body_of, loop_body, main_of, operations, terminator

# The first counter comes to the same value twice, the second one never moves.
LOOP = """
func.func public @main() -> (tensor<i8>, tensor<i32>, tensor<i32>) {
  %first = stablehlo.constant dense<0> : tensor<i8>
  %start = stablehlo.constant dense<3> : tensor<i32>
  %0:3 = stablehlo.while(%a = %first, %b = %start, %i = %start) : tensor<i8>, tensor<i32>, tensor<i32>
  cond {
    %limit = stablehlo.constant dense<10> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %far = stablehlo.constant dense<-128> : tensor<i8>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %two = stablehlo.constant dense<2> : tensor<i32>
    %2 = stablehlo.add %a, %far : tensor<i8>
    %3 = stablehlo.add %b, %zero : tensor<i32>
    %4 = stablehlo.add %i, %two : tensor<i32>
    stablehlo.return %2, %3, %4 : tensor<i8>, tensor<i32>, tensor<i32>
  }
  return %0#0, %0#1, %0#2 : tensor<i8>, tensor<i32>, tensor<i32>
}
"""


def test_the_counter_of_the_test_is_told_from_others() -> None:
    with make_context():
        module = ir.Module.parse(LOOP)
        loop = next(op for op in operations(body_of(main_of(module))) if op.name == "stablehlo.while")
        assert counters(loop) == [(0, 0, -128), (1, 3, 0), (2, 3, 2)]
        assert (counter_of_test(loop), trips(loop)) == ((2, 3, 2), 4)


def narrow_loop(type_: str, start: int, step: int, limit: int) -> str:
    """A loop whose counter has this type, and which adds 3 to the counter."""
    return f"""
    func.func public @main() -> tensor<{type_}> {{
      %start = stablehlo.constant dense<{start}> : tensor<{type_}>
      %0 = stablehlo.while(%i = %start) : tensor<{type_}>
      cond {{
        %limit = stablehlo.constant dense<{limit}> : tensor<{type_}>
        %1 = stablehlo.compare LT, %i, %limit : (tensor<{type_}>, tensor<{type_}>) -> tensor<i1>
        stablehlo.return %1 : tensor<i1>
      }} do {{
        %three = stablehlo.constant dense<3> : tensor<{type_}>
        %more = stablehlo.add %i, %three : tensor<{type_}>
        %step = stablehlo.constant dense<{step}> : tensor<{type_}>
        %next = stablehlo.add %i, %step : tensor<{type_}>
        stablehlo.return %next : tensor<{type_}>
      }}
      return %0 : tensor<{type_}>
    }}
    """


@pytest.mark.parametrize(
    ("type_", "start", "step", "limit", "runs", "row"),
    [
        ("i8", -120, 1, 120, 240, (-117, 1)),
        ("i8", -120, 1, 126, 246, None),  # three more is beyond the type at last
        ("i8", -100, 60, 127, None, None),  # 140 is -116: it goes on
        ("i8", -100, 50, 127, None, None),
        ("i8", -100, 50, 100, 4, (-97, 50)),
        ("ui8", 10, 3, 250, 80, (13, 3)),
        ("ui8", 10, 3, 255, None, None),
        ("ui8", 250, 10, 255, None, None),
        ("ui32", 4294967000, 1, 4294967200, 200, (4294967003, 1)),
        ("i32", -2000000000, 1000000000, 2000000000, 4, (-1999999997, 1000000000)),
        ("ui64", (1 << 63) + 5, 1, (1 << 63) + 12, 7, ((1 << 63) + 8, 1)),
        ("i64", -(1 << 63), 1 << 61, -(1 << 62), 2, (3 - (1 << 63), 1 << 61)),
        ("i64", -(1 << 63), 1 << 62, 1 << 62, None, None),  # 64 bits do not count so far from the start
    ],
)
def test_counters_that_wrap_around_count_nothing(
    type_: str, start: int, step: int, limit: int, runs: int | None, row: tuple[int, int] | None
) -> None:
    with make_context():
        module = ir.Module.parse(narrow_loop(type_, start, step, limit))
        loop = next(op for op in operations(body_of(main_of(module))) if op.name == "stablehlo.while")
        body = loop_body(loop)
        more = next(op for op in operations(body) if op.name == "stablehlo.add").results[0]
        assert trips(loop) == runs
        assert runs is None or affine(more, {body.arguments[0]: (start, step)}, runs) == row


@pytest.mark.parametrize(
    ("type_", "step", "never"),
    [("i8", -1, False), ("i8", 0, True), ("ui8", 255, False), ("i16", -7, False), ("i32", -1, True), ("ui64", 0, True)],
)
def test_a_narrow_counter_that_leads_away_wraps_around_and_ends(type_: str, step: int, never: bool) -> None:
    with make_context():
        module = ir.Module.parse(narrow_loop(type_, 0, step, 9))
        loop = next(op for op in operations(body_of(main_of(module))) if op.name == "stablehlo.while")
        assert never_ends(loop) == never


def test_sums_and_differences_of_counts() -> None:
    text = """
    func.func public @main(%i: tensor<i8>, %k: tensor<i8>) -> (tensor<i8>, tensor<i8>, tensor<i8>, tensor<i8>) {
      %five = stablehlo.constant dense<5> : tensor<i8>
      %0 = stablehlo.subtract %five, %i : tensor<i8>
      %1 = stablehlo.subtract %k, %0 : tensor<i8>
      %2 = stablehlo.add %1, %0 : tensor<i8>
      %3 = stablehlo.multiply %2, %2 : tensor<i8>
      return %0, %1, %2, %3 : tensor<i8>, tensor<i8>, tensor<i8>, tensor<i8>
    }
    """
    with make_context():
        module = ir.Module.parse(text)
        block = body_of(main_of(module))
        counts = {block.arguments[0]: (1, 2), block.arguments[1]: (0, 10)}
        found = [line(value, counts) for value in terminator(block).operands]
        assert [affine(value, counts, 4) for value in terminator(block).operands] == found
    assert found == [(4, -2), (-4, 12), (0, 10), None]


def test_a_value_that_is_added_to_itself_again_and_again_is_no_count() -> None:
    sums = "\n".join(f"%{i + 1} = stablehlo.add %{i}, %{i} : tensor<i32>" for i in range(100))
    text = f"func.func public @main(%0: tensor<i32>) -> tensor<i32> {{\n{sums}\nreturn %100 : tensor<i32>\n}}"
    with make_context():
        module = ir.Module.parse(text.replace("%0", "%x"))
        block = body_of(main_of(module))
        assert line(terminator(block).operands[0], {block.arguments[0]: (0, 1)}) is None


def test_known_integers_wrap_around_as_their_types_do() -> None:
    text = """
    func.func public @main(%start: tensor<i32>) -> (tensor<ui8>, tensor<i8>, tensor<i8>, tensor<i1>, tensor<i32>) {
      %far = stablehlo.constant dense<100> : tensor<i8>
      %0 = stablehlo.convert %start : (tensor<i32>) -> tensor<ui8>
      %1 = stablehlo.convert %start : (tensor<i32>) -> tensor<i8>
      %2 = stablehlo.add %1, %far : tensor<i8>
      %3 = stablehlo.convert %start : (tensor<i32>) -> tensor<i1>
      %4 = stablehlo.convert %start : (tensor<i32>) -> tensor<f32>
      %5 = stablehlo.convert %4 : (tensor<f32>) -> tensor<i32>
      return %0, %1, %2, %3, %5 : tensor<ui8>, tensor<i8>, tensor<i8>, tensor<i1>, tensor<i32>
    }
    """
    with make_context():
        module = ir.Module.parse(text)
        body = body_of(main_of(module))
        constants = Constants({body.arguments[0]: 254 + 512})
        found = list(map(constants.scalar, terminator(body).operands))
    assert found == [254, -2, 98, 1, None]


def test_constants_of_less_than_a_byte_are_known() -> None:
    text = """
func.func public @main() -> (tensor<2xi4>, tensor<2xi32>, tensor<2xui2>) {
  %0 = stablehlo.constant dense<[1, -3]> : tensor<2xi4>
  %1 = stablehlo.convert %0 : (tensor<2xi4>) -> tensor<2xi32>
  %2 = stablehlo.iota dim = 0 : tensor<2xui2>
  return %0, %1, %2 : tensor<2xi4>, tensor<2xi32>, tensor<2xui2>
}
"""
    with make_context():
        module = ir.Module.parse(text)
        found = [Constants().array(value) for value in terminator(body_of(main_of(module))).operands]
    assert [None if array is None else array.tolist() for array in found] == [[1, -3], [1, -3], [0, 1]]
