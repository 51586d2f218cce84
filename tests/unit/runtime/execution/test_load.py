"""What `load` refuses, by its message."""

import pytest
from unit.runtime.programs import Pipeline, hop, module, parse, submeshes

from jaxpp import runtime

X = "tensor<4xf32>"
DOUBLE = f"""func.func private @double(%x: {X}) -> {X} {{
    %0 = stablehlo.add %x, %x : {X}
    return %0 : {X}
}}
func.func private @give(%x: {X} {{tf.aliasing_output = 0 : i32}}) -> {X} {{
    return %x : {X}
}}"""


def mesh(number: int, body: str, arguments: str = "", results: str = "") -> str:
    attributes = f"attributes {{jaxpp.mesh = {number} : i64}}"
    return f"func.func public @mesh_{number}({arguments}) -> ({results}) {attributes} {{ {body} }}"


def send(channel: int, source: int = 0, target: int = 1) -> str:
    return f"""%t = stablehlo.create_token : !stablehlo.token
        %u = "stablehlo.send"(%x, %t) {hop(source, target, channel)} : ({X}, !stablehlo.token) -> !stablehlo.token"""


def receive(channel: int, source: int = 0, target: int = 1, tensor: str = X) -> str:
    return f"""%t = stablehlo.create_token : !stablehlo.token
        %x, %u = "stablehlo.recv"(%t) {hop(source, target, channel)}
            : (!stablehlo.token) -> ({tensor}, !stablehlo.token)"""


IN = f"%x: {X} {{jaxpp.number = 0 : i64}}"
DONATED = f"%x: {X} {{jaxpp.number = 0 : i64, jax.buffer_donor = true}}"
OUT = f"{X} {{jaxpp.number = 0 : i64}}"
CALL = f"({X}) -> {X}"

REFUSED = {
    "the module has no mesh functions": "module {}",
    "jaxpp.meshes is 2, the module has 1 mesh functions": module(mesh(0, "return"), meshes=2),
    "argument 0 of @mesh_0 has no jaxpp.number": module(mesh(0, "return", f"%x: {X}")),
    "result 0 of @mesh_0 has no jaxpp.number": module(mesh(0, f"return %x : {X}", IN, X)),
    "no mesh returns result 0 of the step": module(mesh(0, f"return %x : {X}", IN, OUT.replace("0", "1"))),
    "a mesh function has a stablehlo.add: only constants, calls": module(
        mesh(0, f"%y = stablehlo.add %x, %x : {X} return", IN)
    ),
    "channel 3 from mesh 0 to mesh 1 has no send": module(mesh(0, "return"), mesh(1, receive(3) + " return")),
    "channel 3 from mesh 0 to mesh 1 has no recv": module(mesh(0, send(3) + " return", IN), mesh(1, "return")),
    "channel 3: sent with type tensor<4xf32>, received with tensor<5xf32>": module(
        mesh(0, send(3) + " return", IN), mesh(1, receive(3, tensor="tensor<5xf32>") + " return")
    ),
    "channel 3: a stablehlo.send on mesh 0": module(mesh(0, send(3, 1, 0) + " return", IN), mesh(1, "return")),
    "the double on mesh 0 uses a value after its last use": module(
        DOUBLE,
        mesh(
            0,
            f"""%y = call @double(%x) : {CALL}
            %z = call @double(%y) {{jaxpp.last_use = array<i64: 0>}} : {CALL}
            %w = call @double(%y) : {CALL} return""",
            IN,
        ),
    ),
    "@give takes over the buffer of its argument 0, which lives on": module(
        DOUBLE, mesh(0, f"%y = call @give(%x) : {CALL} return", IN)
    ),
    "^-:10:142: error: @give takes over the buffer of its argument 0, which lives on": module(
        DOUBLE, mesh(0, f"%y = call @give(%x) : {CALL} return", DONATED)
    ),
    "jaxpp.last_use names operand 0, which must not die here": module(
        DOUBLE, mesh(0, f"%y = call @double(%x) {{jaxpp.last_use = array<i64: 0>}} : {CALL} return", IN)
    ),
    "jaxpp.last_use names operand 1, which must not die here": module(
        DOUBLE, mesh(0, f"%y = call @double(%x) {{jaxpp.last_use = array<i64: 1>}} : {CALL} return", IN)
    ),
    "operand 0 of @half is .*, expected float32.*data": module(
        f"""func.func private @half(%x: {X} {{sdy.sharding = #sdy.sharding<@mesh, [{{"data"}}]>}}) -> {X} {{
            return %x : {X}
        }}""",
        mesh(0, f"%y = call @half(%x) : {CALL} return", IN),
        data=2,
    ),
    "expected a tensor of a fixed shape": module(mesh(0, "return", "%x: tensor<?xf32> {jaxpp.number = 0 : i64}")),
}


@pytest.mark.parametrize("message", REFUSED)
def test_refuses(message: str) -> None:
    with pytest.raises(runtime.ProgramError, match=message) as caught:
        parse(REFUSED[message])
    assert len(str(caught.value)) < 300


def test_meshes_that_wait_for_each_other() -> None:
    wait = [
        mesh(
            number,
            f"""%t = stablehlo.create_token : !stablehlo.token
            %x, %u = "stablehlo.recv"(%t) {hop(1 - number, number, 7 + number)}
                : (!stablehlo.token) -> ({X}, !stablehlo.token)
            %v = "stablehlo.send"(%x, %u) {hop(number, 1 - number, 8 - number)}
                : ({X}, !stablehlo.token) -> !stablehlo.token
            return""",
        )
        for number in range(2)
    ]
    message = (
        "deadlock: these meshes wait for one another\n"
        "  mesh 0: the send to mesh 1 of channel 8 comes after the receive from mesh 1 of channel 7\n"
        "  mesh 1: the send to mesh 0 of channel 7 comes after the receive from mesh 0 of channel 8$"
    )
    with pytest.raises(runtime.ProgramError, match=message):
        runtime.Executable(parse(module(*wait)), submeshes(2))


def test_submeshes_must_fit() -> None:
    program = parse(Pipeline(2, 1, data=2).text())
    with pytest.raises(runtime.ProgramError, match="the program has 2 meshes, 3 are given"):
        runtime.Executable(program, submeshes(3, 2))
    with pytest.raises(runtime.ProgramError, match="the program is for 2 devices of mesh 0, which has 1"):
        runtime.Executable(program, submeshes(2))


def test_what_is_read() -> None:
    program = parse(Pipeline(2, 2, data=2).text())
    assert program.axis_sizes == ({"mpmd": 1, "data": 2},) * 2
    assert sorted(program.functions) == ["backward", "first", "forward", "loss", "sgd", "zeros"]
    assert program.arguments[0].donated
    assert not program.arguments[2].donated
    assert str(program.arguments[2].spec) == "float32[2,8,32], ((), ('data',), ())"
    assert [str(each) for each in program.sequences[1][-3:]] == [
        "backward of stage 1, microbatch 1",
        "send on channel 3",
        "after",
    ]
