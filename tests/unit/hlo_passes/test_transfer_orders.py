"""Every schedule of the library, ordered by `insert-transfers` for each transport: proved by `verify-program`."""

import os
import re

import pytest
from jaxlib.mlir import ir
from unit.ir.orders import transfer_order

from jaxpp import _compat, schedules
from jaxpp.hlo_passes.base import run_passes
from jaxpp.hlo_passes.program.insert_transfers import InsertTransfers
from jaxpp.hlo_passes.program.plan_buffers import PlanBuffers
from jaxpp.hlo_passes.program.verify_program import VerifyProgram
from jaxpp.ir.kinds import form_of
from jaxpp.ir.program import Call, Program, Send
from jaxpp.ir.read_program import ProgramReader
from jaxpp.ir.transports import RULES, OrderError, Rules, check_order
from jaxpp.schedules.engine.merged_order import merged_numbers

MOST = int(os.environ.get("JAXPP_TEST_MESHES", "0"))
"""If given, all numbers of meshes up to it are tried: of 8, that takes minutes."""


def placed(schedule: schedules.Schedule, devices: int = 1) -> str:
    """`@main` of a step with this schedule (docs/ir.md, section 5), whose calls make one number each.

    Of several fused tasks it is not said which makes the number, so calls have one function only if what they read is
    called alike: that is compared between microbatches.
    """
    graph = schedule.graph
    calls: list[str] = []
    functions: dict[str, str] = {}
    names: dict[tuple[object, ...], str] = {}
    cells: dict[int, int] = {}
    for mesh, number in merged_numbers(schedule):
        cell = range(number, number + graph.spans[number])
        cells.update(dict.fromkeys(cell, number))
        if not cell:
            continue
        kind = "+".join(graph.tasks[each].kind for each in cell)
        needs = dict.fromkeys(cells.get(need, need) for each in cell for need in graph.needs[each] if need not in cell)
        operands = ([] if form_of(kind).is_copy else [f"%mesh{mesh}"]) + [f"%{need}" for need in needs]
        at, types = graph.tasks[number].microbatch, ", ".join(["tensor<f32>"] * len(operands))
        makers = [graph.tasks[need] for need in needs]
        reads = tuple([(each.kind, each.stage, each.microbatch - at) for each in makers])
        name = names.setdefault((kind, reads), f"{kind.replace('+', '_')}_{len(names)}")
        stages = ", ".join(str(graph.tasks[each].stage) for each in cell)
        microbatches = ", ".join(str(graph.tasks[each].microbatch) for each in cell)
        which, part = f"jaxpp.stage = {stages}, jaxpp.microbatch = {microbatches}", ""
        if len(cell) > 1:
            which = f"jaxpp.stage = array<i64: {stages}>, jaxpp.microbatch = array<i64: {microbatches}>"
            part = " {jaxpp.task = 0 : i64}"
        attributes = f"{{jaxpp.mesh = {mesh}, {which}}}"
        calls.append(f"%{number} = call @{name}({', '.join(operands)}) {attributes} : ({types}) -> tensor<f32>")
        arguments = ", ".join(f"%{each}: tensor<f32>{part}" for each in range(len(operands)))
        own = f"%own = stablehlo.constant dense<{name.rpartition('_')[2]}> : tensor<i32> "
        differs = "" if form_of(kind).is_copy else own  # `plan-buffers` merges equal functions
        functions[name] = (
            f'func.func private @{name}({arguments}) -> (tensor<f32>{part}) attributes {{jaxpp.kind = "{kind}"}} '
            f"{{ {differs}return %0 : tensor<f32> }}"
        )
    inputs = ", ".join(f"%mesh{k}: tensor<f32> {{jaxpp.meshes = array<i64: {k}>}}" for k in range(schedule.meshes))
    return "\n".join(
        (
            f"module attributes {{jaxpp.meshes = {schedule.meshes} : i64, mhlo.num_partitions = {devices} : i32}} {{",
            f"func.func public @main({inputs}) {{",
            *calls,
            "return }",
            *functions.values(),
            "}",
        )
    )


def program_of(schedule: schedules.Schedule, transport: str, devices: int = 1) -> Program:
    """The program of a schedule, ordered and verified for a transport."""
    return _run(placed(schedule, devices), transport)


def _run(text: str, transport: str) -> Program:
    with _compat.make_context():
        module = ir.Module.parse(text)
        run_passes(module, [InsertTransfers(transport), PlanBuffers(), VerifyProgram(transport=transport)])
        return ProgramReader(module).program


def made(name: str, meshes: int) -> schedules.Schedule | None:
    """A schedule of the library; None if there is none for so many meshes."""
    try:
        return schedules.make(name, meshes=meshes, microbatches=2 * meshes)
    except schedules.ScheduleError:
        return None


FREE = Rules(rendezvous=False, has_stream=True)
"""Nothing waits for anything but its values."""

HOPS = (0.0, 0.1)
MOST_TIME = [
    ("device_put", 1, (1.0, 1.09)),
    ("device_put", 2, (1.06, 1.31)),
    ("pair", 2, (1.06, 1.31)),
]
"""A transport, devices of a mesh, and the most time that the order takes for each hop: docs/search.md says so."""


@pytest.mark.parametrize("name", schedules.names())
def test_every_schedule(name: str) -> None:
    """Proved for every transport, and hardly slower than where nothing waits for anything but its values."""
    found = [made(name, meshes) for meshes in (range(1, MOST + 1) if MOST else (3, 2))]
    for schedule in [each for each in found if each][: MOST or 1]:
        pulled = program_of(schedule, "pull")
        free = [transfer_order(pulled, FREE, hop=hop).time for hop in HOPS]
        programs = [program_of(schedule, transport, devices) for transport, devices, _ in MOST_TIME]
        for program, (transport, _, most) in zip(programs, MOST_TIME, strict=True):
            times = [transfer_order(program, transport, hop=hop).time for hop in HOPS]
            assert all(time <= limit * least for time, limit, least in zip(times, most, free, strict=True))
        for transport in RULES:
            check_order(programs[-1], transport)  # that of the strictest


def test_an_order_for_another_transport_may_not_do() -> None:
    """Where a value is sent as soon as it is made, and received when it is needed, sends of 1F1B face each other."""
    schedule = schedules.make("1f1b", meshes=2, microbatches=4)
    wait = (
        "the receive from mesh 1 of backward of stage 1, microbatch 0 (channel 1) comes after "
        "the send to mesh 1 of forward of stage 0, microbatch 1 (channel 2)"
    )
    pulled = program_of(schedule, "pull")
    for transport in ("pair", "device_put"):
        text = f"deadlock: by the transport '{transport}' these meshes wait for one another\n  mesh 0: {wait}"
        with pytest.raises(OrderError, match=re.escape(text)):
            check_order(pulled, transport)


def test_what_several_meshes_make_comes_from_the_first_of_them() -> None:
    """Also where another one has made it earlier: mesh 1 has nothing to do before it."""
    call = "(tensor<f32>) -> tensor<f32>"
    text = f"""module attributes {{jaxpp.meshes = 3 : i64}} {{
        func.func public @main(%x: tensor<f32> {{jaxpp.meshes = array<i64: 0, 1>}}) {{
          %a = call @before(%x) {{jaxpp.mesh = 0}} : {call}
          %b = call @before(%x) {{jaxpp.meshes = array<i64: 0, 1>}} : {call}
          %c = call @before(%b) {{jaxpp.mesh = 2}} : {call}
          return
        }}
        func.func private @before(%x: tensor<f32>) -> tensor<f32> attributes {{jaxpp.kind = "before"}} {{
          return %x : tensor<f32>
        }}
    }}"""
    for transport in RULES:
        lines = _run(text, transport).sequences
        *_, call_, send = lines[0]
        assert isinstance(call_, Call)
        assert isinstance(send, Send)
        assert (send.operand,) == call_.results
        assert [len(line) for line in lines] == [3, 1, 2]
