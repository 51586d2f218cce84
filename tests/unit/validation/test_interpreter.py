"""The reference interpreter: what a program computes, and what no program may do."""

import pytest
from unit.validation.edits import becomes, nothing, validate

from jaxpp.ir.errors import PassError
from jaxpp.validation import ValidationError

PROGRAM = """
module attributes {mhlo.num_partitions = 1 : i32, jaxpp.meshes = 2 : i64} {
  func.func private @forward(%x: tensor<2xf32>, %w: tensor<2xf32>) -> tensor<2xf32>
      attributes {jaxpp.kind = "forward"} {
    %0 = stablehlo.multiply %x, %w : tensor<2xf32>
    return %0 : tensor<2xf32>
  }
  func.func private @accumulate(%s: tensor<2xf32> {tf.aliasing_output = 0 : i32}, %x: tensor<2xf32>) -> tensor<2xf32> {
    %0 = stablehlo.add %s, %x : tensor<2xf32>
    return %0 : tensor<2xf32>
  }
  func.func public @mesh_0(%w: tensor<2xf32> {jaxpp.number = 1 : i64}, %x: tensor<2xf32> {jaxpp.number = 0 : i64})
      attributes {jaxpp.mesh = 0 : i64} {
    %t0 = stablehlo.create_token : !stablehlo.token
    %c = stablehlo.constant dense<[2.0, 3.0]> : tensor<2xf32>
    %a = call @forward(%x, %w) : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
    %b = call @forward(%a, %c) : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
    SEND %a, %t0, 1 -> %t1
    SEND %b, %t1, 2 -> %t2
    return
  }
  func.func public @mesh_1(%s: tensor<2xf32> {jaxpp.number = 2 : i64, jax.buffer_donor = true})
      -> (tensor<2xf32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 1 : i64} {
    %t0 = stablehlo.create_token : !stablehlo.token
    RECV %t0, 1 -> %a, %t1
    RECV %t1, 2 -> %b, %t2
    %0 = call @accumulate(%s, %a) {jaxpp.last_use = array<i64: 0, 1>} : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
    %1 = call @forward(%0, %0) {jaxpp.last_use = array<i64: 0, 1>} : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
    %2 = call @forward(%1, %b) : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
    return %2 : tensor<2xf32>
  }
}
"""


def program(*changes: tuple[str, str]) -> str:
    """PROGRAM with changes, and its shorthands for sends and receives written out."""
    text = PROGRAM
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return "\n".join(map(written_out, text.splitlines()))


def channel_form(channel: str, meshes: str = "0-1") -> str:
    numbers = [int(number) for number in meshes.split("-")]
    pairs = [numbers[i : i + 2] for i in range(0, len(numbers), 2)]
    handle = f"#stablehlo.channel_handle<handle = {channel}, type = 1>"
    return f"<{{channel_handle = {handle}, source_target_pairs = dense<{pairs}> : tensor<{len(pairs)}x2xi64>}}>"


def written_out(line: str) -> str:
    match line.replace(",", "").split():
        case ["SEND", value, token, channel, "->", result, *pair]:
            form = channel_form(channel, *pair)
            types = "(tensor<2xf32>, !stablehlo.token) -> !stablehlo.token"
            return f'{result} = "stablehlo.send"({value}, {token}) {form} {{jaxpp.last_use = array<i64: 0>}} : {types}'
        case ["RECV", token, channel, "->", value, result, *pair]:
            form = channel_form(channel, *pair)
            types = "(!stablehlo.token) -> (tensor<2xf32>, !stablehlo.token)"
            return f'{value}, {result} = "stablehlo.recv"({token}) {form} : {types}'
        case _:
            return line


def test_a_program_is_what_its_main_was() -> None:
    main = """
    func.func public @main(%x: tensor<2xf32>, %w: tensor<2xf32>, %s: tensor<2xf32>, %unused: tensor<f32>)
        -> tensor<2xf32> {
      %c = stablehlo.constant dense<[2.0, 3.0]> : tensor<2xf32>
      %a = stablehlo.multiply %x, %w : tensor<2xf32>
      %b = stablehlo.multiply %a, %c : tensor<2xf32>
      %0 = stablehlo.add %s, %a : tensor<2xf32>
      %1 = stablehlo.multiply %0, %0 : tensor<2xf32>
      %2 = stablehlo.multiply %1, %b : tensor<2xf32>
      return %2 : tensor<2xf32>
    }"""
    assert "1 results agree after each of 2 passes" in validate(main, becomes(program()), nothing)
    with pytest.raises(ValidationError, match="result 0 on mesh 1 differs by"):
        validate(
            main, becomes(program(("SEND %a, %t0, 1 ", "SEND %a, %t0, 2 "), ("SEND %b, %t1, 2 ", "SEND %b, %t1, 1 ")))
        )


EXTRA_SEND = "    SEND %b"
TWO = "(tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>"
WRONG_PROGRAMS = {
    "channel 2 from mesh 0 to mesh 1 has no send": [("SEND %b, %t1, 2 -> %t2", "")],
    "channel 2 from mesh 0 to mesh 1 has no recv": [
        ("RECV %t1, 2 -> %b, %t2", ""),
        ("@forward(%1, %b)", "@forward(%1, %1)"),
    ],
    "channel 1: a second stablehlo.send on mesh 0": [("SEND %b, %t1, 2 ", "SEND %b, %t1, 1 ")],
    "channel 1: a second stablehlo.recv on mesh 1": [("RECV %t1, 2 ", "RECV %t1, 1 ")],
    "channel 2: a stablehlo.send on mesh 0": [("SEND %b, %t1, 2 -> %t2", "SEND %b, %t1, 2 -> %t2 1-0")],
    "channel 2: sent with meshes (0, 1), received with (3, 1)": [
        ("RECV %t1, 2 -> %b, %t2", "RECV %t1, 2 -> %b, %t2 3-1")
    ],
    "a stablehlo.send with 2 source-target pairs, expected one": [
        ("SEND %b, %t1, 2 -> %t2", "SEND %b, %t1, 2 -> %t2 0-1-2-0")
    ],
    "the forward on mesh 1 uses a value after its last use": [("@forward(%1, %b)", "@forward(%1, %a)")],
    "the forward on mesh 0 uses a value after its last use": [
        (EXTRA_SEND, f"%d = call @forward(%a, %c) : {TWO}\n{EXTRA_SEND}")
    ],
    "jaxpp.last_use names operand 0, which must not die here": [
        ("return %2 :", "return %1 :"),
        ("@forward(%1, %b) :", "@forward(%1, %b) {jaxpp.last_use = array<i64: 0>} :"),
    ],
    "jaxpp.last_use names operand 1, which must not die": [
        ("call @forward(%x, %w)", "call @forward(%x, %w) {jaxpp.last_use = array<i64: 1>}")
    ],
    "jaxpp.last_use names operand 1, which must not die here": [
        ("call @forward(%a, %c)", "call @forward(%a, %c) {jaxpp.last_use = array<i64: 1>}")
    ],
    "jaxpp.last_use names operand 7, which must not die here": [
        ("call @forward(%a, %c)", "call @forward(%a, %c) {jaxpp.last_use = array<i64: 7>}")
    ],
    "@accumulate takes over the buffer of its argument 0, which lives on": [
        ("@accumulate(%s, %a) {jaxpp.last_use = array<i64: 0, 1>}", "@accumulate(%s, %a)")
    ],
    "a mesh function has a stablehlo.add: only constants": [
        (EXTRA_SEND, f"%d = stablehlo.add %a, %a : tensor<2xf32>\n{EXTRA_SEND}")
    ],
}


@pytest.mark.parametrize("message", WRONG_PROGRAMS)
def test_wrong_programs(message: str) -> None:
    with pytest.raises(ValidationError) as error:
        validate(program(), becomes(program(*WRONG_PROGRAMS[message])))
    assert error.value.message.startswith(f"what pass 'edit' made does not run: {message}"), error.value.message
    assert error.value.source


def test_a_deadlock_names_every_waiting_mesh() -> None:
    ring = program(
        ("    SEND %a, %t0, 1 -> %t1", "    RECV %t0, 9 -> %back, %t1a 1-0\n    SEND %a, %t1a, 1 -> %t1"),
        ("    return %2 :", "    SEND %1, %t2, 9 -> %t3 1-0\n    return %2 :"),
    )
    waits = r"mesh 0: the send .*\(channel 1\) comes after the receive .*\(channel 9\)\n  mesh 1: the send "
    with pytest.raises(PassError, match=waits):
        validate(program(), becomes(ring))
