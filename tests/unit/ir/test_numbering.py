"""Values of one number are equal, bit by bit; what differs in anything has another number."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from jaxlib.mlir import ir

from jaxpp._compat import make_context
from jaxpp.ir.functions import body_of, main_of, operations, terminator
from jaxpp.ir.numbering import Numbering, kind_of
from jaxpp.validation.cpu import Runner

Draw = Callable[[st.SearchStrategy[Any]], Any]
TYPE = "tensor<3xi32>"
BOOLEANS = st.booleans()


def numbers(text: str, **options: Any) -> list[int]:
    """The numbers of what the `@main` of a module returns."""
    with make_context():
        module = ir.Module.parse(text)
        numbering = Numbering(**options)
        return [numbering.of(value) for value in terminator(body_of(main_of(module))).operands]


def of_lines(*lines: str, types: str = "tensor<f32>", more: str = "") -> list[int]:
    """The numbers of the results of these operations, each of `%x` and `%y`."""
    made = "\n".join(f"%{number} = {line}" for number, line in enumerate(lines))
    returned = ", ".join(f"%{number}" for number in range(len(lines)))
    each = ", ".join([types] * len(lines))
    head = f"func.func public @main(%x: {types}, %y: {types}) -> ({each})"
    return numbers(f"{head} {{\n{made}\nreturn {returned} : {each}\n}}\n{more}")


def loop(*, sum: str = "add %a, %c", trips: int = 3, swap: bool = False, first: str = "%x, %y") -> str:
    one, other = first.split(", ")
    return f"""stablehlo.while(%i = %c0, %a = {one}, %b = {other}) : tensor<i32>, tensor<f32>, tensor<f32>
    cond {{
      %n = stablehlo.constant dense<{trips}> : tensor<i32>
      %t = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %t : tensor<i1>
    }} do {{
      %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.add %i, %one : tensor<i32>
      %c = stablehlo.constant dense<2.0> : tensor<f32>
      %d = stablehlo.{sum} : tensor<f32>
      %e = stablehlo.negate %b : tensor<f32>
      stablehlo.return %next, {"%e, %d" if swap else "%d, %e"} : tensor<i32>, tensor<f32>, tensor<f32>
    }}"""


def of_loops(*loops: str) -> list[list[int]]:
    """The numbers of the three results of each loop."""
    made = "\n".join(f"%{number}:3 = {each}" for number, each in enumerate(loops))
    values = [f"%{number}#{result}" for number in range(len(loops)) for result in range(3)]
    types = ", ".join(["tensor<i32>, tensor<f32>, tensor<f32>"] * len(loops))
    found = numbers(
        f"func.func public @main(%x: tensor<f32>, %y: tensor<f32>) -> ({types}) {{\n"
        f"%c0 = stablehlo.constant dense<0> : tensor<i32>\n{made}\nreturn {', '.join(values)} : {types}\n}}"
    )
    return [found[start : start + 3] for start in range(0, len(found), 3)]


def test_loops_are_equal_result_by_result() -> None:
    one, same, other_start, other_add, other_trips, swapped = of_loops(
        loop(), loop(), loop(first="%y, %y"), loop(sum="add %a, %a"), loop(trips=4), loop(swap=True)
    )
    assert one == same
    assert [a == b for a, b in zip(one, other_start, strict=True)] == [True, False, True]
    assert [a == b for a, b in zip(one, other_add, strict=True)] == [True, False, True]
    assert set(one).isdisjoint(other_trips)
    assert [a == b for a, b in zip(one, swapped, strict=True)] == [True, False, False]
    assert len({*one, *other_start, *other_add, *other_trips, *swapped}) == 3 + 1 + 1 + 3 + 2


def test_carried_values_count_by_what_they_are_used_for() -> None:
    one, other = of_loops(loop(sum="subtract %a, %b"), loop(sum="subtract %b, %a"))
    assert [a == b for a, b in zip(one, other, strict=True)] == [True, False, True]
    text = (
        loop()
        .replace("compare LT, %i, %n", "compare LT, %s, %n")
        .replace(
            "%n = ",
            "%j = stablehlo.convert %a : (tensor<f32>) -> tensor<i32>\n%s = stablehlo.add %i, %j : tensor<i32>\n%n = ",
        )
    )
    (found,) = of_loops(text)
    assert len(set(found)) == 3


def test_attributes_and_result_numbers_count() -> None:
    call = "stablehlo.custom_call @f(%x) {{backend_config = {}{}}} : (tensor<f32>) -> tensor<f32>"
    one, same, other, effect, again = of_lines(
        *(call.format(config, "") for config in ('"a"', '"a"', '"b"')),
        *[call.format('"a"', ", has_side_effect = true")] * 2,
    )
    assert one == same
    assert len({one, other, effect, again}) == 4


def test_what_has_an_effect_is_never_equal() -> None:
    """Nor is what is made of it, in a function that is called, or of an argument."""
    draw = "stablehlo.rng %x, %y, %s, distribution = UNIFORM : (tensor<f32>, tensor<f32>, tensor<0xi64>) -> tensor<f32>"
    shape = "%s = stablehlo.constant dense<> : tensor<0xi64>\n"
    function = (
        "func.func private @{}(%x: tensor<f32>, %y: tensor<f32>) -> tensor<f32> {{\n{}\nreturn %r : tensor<f32>\n}}\n"
    )
    impure = function.format("draws", f"{shape}%r = {draw}")
    pure = function.format("adds", "%r = stablehlo.add %x, %y : tensor<f32>")
    call = "call @{}(%x, %y) : (tensor<f32>, tensor<f32>) -> tensor<f32>"
    found = of_lines(*[call.format("draws")] * 2, *[call.format("adds")] * 2, more=impure + pure)
    assert len(set(found)) == 3
    assert found[2] == found[3]
    drawn = numbers(
        f"func.func public @main(%x: tensor<f32>, %y: tensor<f32>) -> (tensor<f32>, tensor<f32>) {{\n{shape}"
        f"%0 = {draw}\n%1 = {draw}\n%2 = stablehlo.negate %0 : tensor<f32>\n%3 = stablehlo.negate %1 : tensor<f32>\n"
        "return %2, %3 : tensor<f32>, tensor<f32>\n}"
    )
    assert drawn[0] != drawn[1]
    assert len(set(of_lines("stablehlo.negate %x : tensor<f32>", "stablehlo.negate %y : tensor<f32>"))) == 2


def test_constants_of_all_types_are_told_apart() -> None:
    for types, values in {
        "tensor<complex<f32>>": ("(1.0, 2.0)", "(1.0, 2.0)", "(1.0, -2.0)", "(0.0, 0.0)", "(-0.0, 0.0)"),
        "tensor<f32>": ("0.0", "0.0", "-0.0", "0x7FC00000", "0x7FC00001"),
        "tensor<ui64>": ("18446744073709551615", "18446744073709551615", "9223372036854775808", "0", "1"),
        "tensor<2xi4>": ("[1, -1]", "[1, -1]", "1", "-1", "[-1, 1]"),
        "tensor<bf16>": ("1.0", "1.0", "-0.0", "0.0", "0x7FC0"),
    }.items():
        one, same, *others = of_lines(*(f"stablehlo.constant dense<{each}> : {types}" for each in values), types=types)
        assert one == same
        assert len({one, *others}) == 4


def test_collectives_may_have_other_channels() -> None:
    """JAX numbers them through: that of a recomputation has another number."""
    reduce = """"stablehlo.all_reduce"(%x) <{{channel_handle = #stablehlo.channel_handle<handle = {}, type = {}>,
        replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}}> ({{
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %s = stablehlo.{} %a, %b : tensor<f32>
        stablehlo.return %s : tensor<f32>
    }}) : (tensor<f32>) -> tensor<f32>"""
    one, same, maximum = of_lines(*(reduce.format(n, 1, op) for n, op in ((1, "add"), (2, "add"), (3, "maximum"))))
    assert one == same != maximum


def test_a_kind_tells_what_an_operation_does_and_not_of_what() -> None:
    text = """
      func.func public @main(%x: tensor<f32>, %y: tensor<f32>) -> tensor<f32> {
        %0 = stablehlo.add %x, %y {jaxpp.task = "forward_0"} : tensor<f32>
        %1 = stablehlo.add %y, %x : tensor<f32>
        %2 = stablehlo.subtract %x, %y : tensor<f32>
        return %0 : tensor<f32>
      }
    """
    with make_context():
        module = ir.Module.parse(text)
        add, same, other, _ = operations(body_of(main_of(module)))
        assert kind_of(add)[0] != kind_of(same)[0] != kind_of(other)[0]
        kind, uses = kind_of(add, without=("jaxpp.task",))
        assert kind == kind_of(same)[0]
        assert uses == kind_of(same)[1][::-1]


class Writer:
    """Writes a function twice, the second time perhaps with a change, and values of region operations in another order.

    Attributes:
        lines: the text of the operations.
        values: those that were made, of each copy; an entry of one corresponds to that of the other.
    """

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.lines: list[str] = []
        self.values = ["%x", "%y"], ["%x", "%y"]
        self._names = 0

    def name(self) -> str:
        self._names += 1
        return f"%v{self._names}"

    def write(self) -> None:
        """Write one operation into both copies."""
        forms = [self.simple, self.random, self.loop, self.loop, self.branches, self.sort, self.reduce]
        write = self.draw(st.sampled_from(forms))
        count = len(self.values[0])
        places = self.draw(st.lists(st.integers(0, count - 1), min_size=3, max_size=3))
        words = self.draw(st.lists(st.integers(0, 5), min_size=8, max_size=8))
        changed = list(words)
        if self.draw(BOOLEANS):
            place = self.draw(st.integers(0, 4))
            changed[place] = (changed[place] + self.draw(st.integers(1, 5))) % 6
        for values, own in zip(self.values, (words, changed), strict=True):
            values.extend(write([values[place] for place in places], own, values is self.values[1]))

    def simple(self, taken: list[str], words: list[int], again: bool) -> list[str]:
        """An elementwise operation, a constant, attributes, narrow and complex types."""
        one, other, _ = taken
        made, a, b = self.name(), self.name(), self.name()
        self.lines += [
            [f"{made} = stablehlo.subtract {one}, {other} : {TYPE}"],
            [f"{made} = stablehlo.constant dense<{words[1]}> : {TYPE}"],
            [f"{made} = stablehlo.reverse {one}, dims = [{'0' * (words[1] > 2)}] : {TYPE}"],
            [
                f"{a} = stablehlo.convert {one} : ({TYPE}) -> tensor<3xi{[4, 8][words[1] % 2]}>",
                f"{made} = stablehlo.convert {a} : (tensor<3xi{[4, 8][words[1] % 2]}>) -> {TYPE}",
            ],
            [
                f"{a} = stablehlo.constant dense<({words[1]}.0, {words[2]}.0)> : tensor<3xcomplex<f32>>",
                f"{b} = stablehlo.{['real', 'imag'][words[3] % 2]} {a} : (tensor<3xcomplex<f32>>) -> tensor<3xf32>",
                f"{made} = stablehlo.convert {b} : (tensor<3xf32>) -> {TYPE}",
            ],
        ][words[0] % 5]
        return [made]

    def random(self, taken: list[str], words: list[int], again: bool) -> list[str]:
        """Random numbers, which are others in each copy."""
        made, types = self.name(), f"(tensor<i32>, tensor<i32>, tensor<1xi64>) -> {TYPE}"
        self.lines.append(f"{made} = stablehlo.rng %low, %high, %shape, distribution = UNIFORM : {types}")
        return [made]

    def _of(self, word: int, one: str, other: str, name: str) -> str:
        operation = ["add", "subtract", "multiply", "maximum", "minimum", "xor"][word]
        return f"{name} = stablehlo.{operation} {one}, {other} : {TYPE}"

    def loop(self, taken: list[str], words: list[int], again: bool) -> list[str]:
        """A loop of two values and, in the second copy, of a third one in front of them, which nobody reads."""
        made, extra = self.name(), again and words[7] > 2
        begun = [*([taken[2]] if extra else []), *taken[:2]]
        count = len(begun)
        carried = [f"{made}c{n}" for n in range(count)]
        p, q = carried[-2:]
        left, right = [p, q, taken[2]][words[1] % 3], [p, q, taken[2]][words[2] % 3]
        returned = [*([f"{made}e"] if extra else []), f"{made}n", [f"{made}n", p, q][words[4] % 3]]
        types = ", ".join(["tensor<i32>", *[TYPE] * count])
        heads = ", ".join(f"{name} = {value}" for name, value in zip(carried, begun, strict=True))
        self.lines.append(f"""{made}:{count + 1} = stablehlo.while({made}i = %zero, {heads}) : {types}
          cond {{
            {made}t = stablehlo.constant dense<{words[3] % 3}> : tensor<i32>
            {made}l = stablehlo.compare LT, {made}i, {made}t : (tensor<i32>, tensor<i32>) -> tensor<i1>
            stablehlo.return {made}l : tensor<i1>
          }} do {{
            {made}one = stablehlo.constant dense<1> : tensor<i32>
            {made}j = stablehlo.add {made}i, {made}one : tensor<i32>
            {self._of(words[0], left, right, f"{made}n")}
            {self._of(0, carried[0], p, f"{made}e")}
            stablehlo.return {", ".join([f"{made}j", *returned])} : {types}
          }}""")
        return [f"{made}#{count - 1}", f"{made}#{count}"]

    def branches(self, taken: list[str], words: list[int], again: bool) -> list[str]:
        """A conditional, of which the second copy may return more."""
        made, more = self.name(), again and words[7] > 2
        first = self._of(words[0], taken[0], taken[1], f"{made}a")
        second = self._of(words[1], taken[1], taken[2], f"{made}b")
        returned = [f"{made}a", taken[words[2] % 3]], [taken[words[3] % 3], f"{made}b"]
        types = ", ".join([TYPE] * (2 + more))
        one, other = (", ".join([*([taken[0]] if more else []), *each]) for each in returned)
        self.lines.append(f"""{made}p = stablehlo.slice {taken[0]} [0:1] : ({TYPE}) -> tensor<1xi32>
          {made}i = stablehlo.reshape {made}p : (tensor<1xi32>) -> tensor<i32>
          {made}:{2 + more} = "stablehlo.case"({made}i) ({{
            {first}
            stablehlo.return {one} : {types}
          }}, {{
            {second}
            stablehlo.return {other} : {types}
          }}) : (tensor<i32>) -> ({types})""")
        return [f"{made}#{more:d}", f"{made}#{1 + more}"]

    def sort(self, taken: list[str], words: list[int], again: bool) -> list[str]:
        """A stable sort by the first operand; the second copy may sort a third one with it."""
        made, more = self.name(), again and words[7] > 2
        sorted_ = [*taken[:2], *([taken[2]] if more else [])]
        names = ", ".join(f"{made}a{n}: tensor<i32>" for n in range(2 * len(sorted_)))
        key, types = 2 * (words[0] % 2), ", ".join([TYPE] * len(sorted_))
        self.lines.append(f"""{made}:{len(sorted_)} = "stablehlo.sort"({", ".join(sorted_)})
          <{{dimension = 0 : i64, is_stable = true}}> ({{
          ^bb0({names}):
            {made}t = stablehlo.compare {["LT", "GT"][words[1] % 2]}, {made}a{key}, {made}a{key + 1}
              : (tensor<i32>, tensor<i32>) -> tensor<i1>
            stablehlo.return {made}t : tensor<i1>
          }}) : ({types}) -> ({types})""")
        return [f"{made}#0", f"{made}#1"]

    def reduce(self, taken: list[str], words: list[int], again: bool) -> list[str]:
        """A reduction of two values to two."""
        made = self.name()
        bodies = [
            self._of(words[n], f"{made}{n}a", f"{made}{words[2 + n] % 2}b", f"{made}r{n}").replace(TYPE, "tensor<i32>")
            for n in range(2)
        ]
        arguments = ", ".join(f"{made}{n}{side}: tensor<i32>" for side in "ab" for n in range(2))
        self.lines.append(f"""{made}s:2 = "stablehlo.reduce"({taken[0]}, {taken[1]}, %zero, %zero)
          <{{dimensions = array<i64: 0>}}> ({{
          ^bb0({arguments}):
            {bodies[0]}
            {bodies[1]}
            stablehlo.return {made}r0, {made}r1 : tensor<i32>, tensor<i32>
          }}) : ({TYPE}, {TYPE}, tensor<i32>, tensor<i32>) -> (tensor<i32>, tensor<i32>)""")
        results = [self.name(), self.name()]
        for number, result in enumerate(results):
            self.lines.append(
                f"{result} = stablehlo.broadcast_in_dim {made}s#{number}, dims = [] : (tensor<i32>) -> {TYPE}"
            )
        return results

    def text(self) -> str:
        values = [value for copy in self.values for value in copy]
        types = ", ".join([TYPE] * len(values))
        lines = "\n".join(self.lines)
        return f"""func.func public @main(%x: {TYPE}, %y: {TYPE}) -> ({types}) {{
          %zero = stablehlo.constant dense<0> : tensor<i32>
          %low = stablehlo.constant dense<0> : tensor<i32>
          %high = stablehlo.constant dense<1000000> : tensor<i32>
          %shape = stablehlo.constant dense<3> : tensor<1xi64>
          {lines}
          return {", ".join(values)} : {types}
        }}"""


@settings(max_examples=30, deadline=None, derandomize=True, phases=[Phase.generate])
@given(st.data())
def test_what_is_judged_equal_is_equal_bit_by_bit(data: st.DataObject) -> None:
    writer = Writer(data.draw)
    for _ in range(data.draw(st.integers(4, 10))):
        writer.write()
    text = writer.text()
    runner = Runner(1)
    with make_context():
        module = ir.Module.parse(text)
        numbering = Numbering()
        found = [numbering.of(value) for value in terminator(body_of(main_of(module))).operands]
        run = runner.compile(module, "main")
    random = np.random.default_rng(data.draw(st.integers(0, 1000)))
    arguments = [runner.put(random.integers(-3, 4, size=3).astype("i4")) for _ in range(2)]
    first: dict[int, np.ndarray[Any, Any]] = {}
    for number, value in zip(found, map(np.asarray, run(arguments)), strict=True):
        np.testing.assert_array_equal(value, first.setdefault(number, value))


@settings(max_examples=50, deadline=None, derandomize=True, phases=[Phase.generate])
@given(st.data())
def test_what_is_written_twice_is_judged_equal(data: st.DataObject) -> None:
    """So are loops that carry more, conditionals that return more, and sorts of more; random numbers are not."""
    writer = Writer(lambda strategy: False if strategy is BOOLEANS else data.draw(strategy))
    for _ in range(data.draw(st.integers(2, 6))):
        writer.write()
    found = numbers(writer.text())
    if "stablehlo.rng" not in writer.text():
        assert found[: len(found) // 2] == found[len(found) // 2 :]


@pytest.mark.parametrize("stable", [True, False])
def test_the_order_of_ties_in_an_unstable_sort_may_depend_on_what_else_is_sorted(stable: bool) -> None:
    def sort(*operands: str) -> str:
        names = ", ".join(f"%a{n}: tensor<i32>" for n in range(2 * len(operands)))
        types = ", ".join([TYPE] * len(operands))
        flag = str(stable).lower()
        return f""""stablehlo.sort"({", ".join(operands)}) <{{dimension = 0 : i64, is_stable = {flag}}}> ({{
          ^bb0({names}):
            %t = stablehlo.compare LT, %a0, %a1 : (tensor<i32>, tensor<i32>) -> tensor<i1>
            stablehlo.return %t : tensor<i1>
          }}) : ({types}) -> ({types})"""

    one, other = numbers(
        f"func.func public @main(%x: {TYPE}, %y: {TYPE}) -> ({TYPE}, {TYPE}) {{\n"
        f"%0 = {sort('%x')}\n%1:2 = {sort('%x', '%y')}\nreturn %0, %1#0 : {TYPE}, {TYPE}\n}}"
    )
    assert (one == other) == stable
