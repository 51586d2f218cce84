"""The merged order: every mesh's own order, sends before receives, and the pipeline's shape in time."""

import dataclasses
import itertools

import pytest
from unit.runtime.processes.random_programs import RandomProgram
from unit.runtime.programs import Pipeline, parse

from jaxpp.ir.program import Call, Constant, Instruction, Receive, Send
from jaxpp.ir.transports import RULES, check_order
from jaxpp.runtime.execution.order import merged_order, with_pulls, with_receives_at_sends


def test_keeps_each_meshs_order_and_sends_first() -> None:
    program = parse(Pipeline(4, 6).text())
    order = merged_order(program)
    for mesh, sequence in enumerate(program.sequences):
        assert [each for owner, each in order if owner == mesh] == [
            each for each in sequence if not isinstance(each, Constant)
        ]
    sent: set[int] = set()
    for _, each in order:
        if isinstance(each, Send):
            sent.add(each.channel)
        assert not isinstance(each, Receive) or each.channel in sent


def test_a_send_follows_its_call() -> None:
    order = merged_order(parse(Pipeline(3, 4).text()))
    for (mesh, before), (owner, each) in itertools.pairwise(order):
        if isinstance(each, Send):
            assert mesh == owner
            assert isinstance(before, Call)
            assert each.operand in before.results


def test_tasks_come_by_their_start() -> None:
    """Two stages, two microbatches: forward takes 1, backward 2, a copy nothing."""
    order = merged_order(parse(Pipeline(2, 2).text()), hop=0.0)
    tasks = [
        (mesh, each.kind, each.microbatch) for mesh, each in order if isinstance(each, Call) and each.stage is not None
    ]
    assert [task for task in tasks if task[1] != "loss"] == [
        (0, "forward", 0),
        (0, "forward", 1),
        (1, "forward", 0),
        (1, "backward", 0),
        (0, "backward", 0),
        (1, "forward", 1),
        (1, "backward", 1),
        (0, "backward", 1),
    ]


def test_a_reader_comes_later_while_its_copy_is_under_way() -> None:
    order = merged_order(parse(Pipeline(2, 4).text()), hop=2.0)
    tasks = [(mesh, each.kind) for mesh, each in order if isinstance(each, Call) and each.stage is not None]
    assert tasks[:3] == [(0, "forward"), (0, "forward"), (1, "forward")]
    assert tasks.index((1, "backward")) < tasks.index((0, "backward"))


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_values_of_other_processes_are_asked_for_some_calls_early(ahead: int) -> None:
    """Of a process that runs mesh 1 of three: so many calls stand between a pull and where the receive stood."""
    order = [(mesh, each) for mesh, each in merged_order(parse(Pipeline(3, 6).text())) if mesh == 1]
    found = with_pulls(order, ahead)
    assert sorted(map(str, found)) == sorted(map(str, order))
    assert [each for each in found if not isinstance(each[1], Receive)] == [
        each for each in order if not isinstance(each[1], Receive)
    ]
    for receive in (each for each in order if isinstance(each[1], Receive)):
        before, early = ([*filter(is_call, line[: line.index(receive)])] for line in (order, found))
        assert len(before) - len(early) == min(ahead, len(before))


def test_receives_at_their_sends_are_an_order_for_every_transport() -> None:
    """Each value is asked for where it is sent, and due where it was received: no mesh then waits for another one."""
    for number in range(8):
        program = parse(RandomProgram(number).text)
        order = merged_order(program)
        found = with_receives_at_sends(order, program.hops.keys())
        asked: set[int] = set()
        due: list[tuple[int, object]] = []
        lines: list[list[Instruction]] = [[] for _ in range(program.meshes)]
        for mesh, each in found:
            is_due = isinstance(each, Receive) and each.channel in asked
            if isinstance(each, Receive):
                asked.add(each.channel)
            if not is_due:
                lines[mesh].append(each)
            if is_due or not isinstance(each, Receive):
                due.append((mesh, each))
        assert due == order
        for rules in RULES:
            check_order(dataclasses.replace(program, sequences=tuple(map(tuple, lines))), rules)
        assert with_receives_at_sends(order, []) == order


def is_call(each: tuple[int, object]) -> bool:
    return isinstance(each[1], Call)
