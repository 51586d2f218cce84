"""Programs whose residuals leave, come back and are made again, with a mistake: refused, or they compute the same."""

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from jaxlib.mlir import ir
from unit.end_to_end.compare import batch, make_mesh, sgd_step, weights

import jaxpp.api as jaxpp
from jaxpp import schedules
from jaxpp._compat import make_context
from jaxpp.hlo_passes import run_passes
from jaxpp.hlo_passes.program.verify_program import VerifyProgram
from jaxpp.ir.errors import ProgramError
from jaxpp.ir.read_program import ProgramReader
from jaxpp.schedules.rewrites.peers import evict
from jaxpp.validation.cpu import Runner
from jaxpp.validation.interpreter import Interpreter

PLAN = schedules.make("1f1b", meshes=2, microbatches=3)
MOVED = {
    "offload": schedules.offload(PLAN),
    "evict": evict(schedules.make("1f1b", meshes=4, microbatches=4)),
    "both": schedules.offload(evict(schedules.make("1f1b", meshes=4, microbatches=6)), 0),
    "recompute": schedules.offload(schedules.recompute(PLAN)),
}
MOVE = re.compile(r"call @(offload|reload|evict|load|recompute)\w*(\(.*?\))")
READER = re.compile(r'(?P<name>call @(?!after|before)\w+_\d+|"stablehlo.send")\((?P<values>%[^)]*)\)')
VALUE = re.compile(r"%\w+(?:#\d+)?")
LINE = re.compile(r'call @|"stablehlo\.(send|recv)"')
NUMBER = re.compile(r"(?<=[ \[<])\d+(?=[,\]> ])")


def program_of(plan: schedules.Schedule) -> str:
    """The text of a program, without the peaks that `verify-program` wrote."""
    step = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule=plan), make_mesh(plan.meshes))
    return step.lower(weights(plan.stages), batch(plan.microbatches)).program().as_text()


def mistaken(draw: random.Random, lines: list[str]) -> None:
    """Make a mistake with a call that moves values or makes them again, or with a transfer."""
    first = next(number for number, line in enumerate(lines) if "func.func public @mesh_" in line)
    steps = [number for number, line in enumerate(lines) if number > first and LINE.search(line)]
    moves = [number for number in steps if MOVE.search(lines[number]) or '"stablehlo.' in lines[number]]
    place = draw.choice(moves)
    other = draw.choice([step for step in steps if step != place and abs(step - place) < 8])
    match draw.randrange(8):
        case 0:
            del lines[place]
        case 1:
            lines.insert(other, lines.pop(place))
        case 2:
            lines[place], lines[other] = lines[other], lines[place]
        case 3:
            exchange(draw, lines, lambda line: MOVE.search(line), 2)
        case 4:
            exchange(draw, lines, lambda line: re.search("(jaxpp.microbatch = )([0-9]+)", line), 2)
        case 5 | 6:
            exchange_values(draw, lines)
        case _:
            found = draw.choice(list(NUMBER.finditer(lines[place])))
            put(lines, place, found.span(), str(draw.choice((0, 1, 2, 7))))


def exchange(draw: random.Random, lines: list[str], find: Callable[[str], "re.Match[str] | None"], group: int) -> None:
    """Let two calls of one function have each other's operands, or microbatches: all values still die once."""
    calls = [number for number, line in enumerate(lines) if MOVE.search(line)]
    one = draw.choice(calls)
    same = [number for number in calls if callee(lines[number]) == callee(lines[one])]
    other = draw.choice(same or [one])
    first, second = find(lines[one]), find(lines[other])
    assert first is not None
    assert second is not None
    put(lines, one, first.span(group), second[group])
    put(lines, other, second.span(group), first[group])


def exchange_values(draw: random.Random, lines: list[str]) -> None:
    """Let two tasks of one function, or two sends between the same meshes, have one of each other's values."""
    steps = {number: found for number, line in enumerate(lines) if (found := READER.search(line))}
    one = draw.choice([*steps])
    other = draw.choice([each for each in steps if lines[each].count(pair_of(lines[one]))])
    first, second = (list(VALUE.finditer(lines[number], *steps[number].span("values"))) for number in (one, other))
    place = draw.randrange(len(first)) if "send" not in steps[one]["name"] else 0
    for number, found, new in ((one, first, second[place][0]), (other, second, first[place][0])):
        put(lines, number, found[place].span(), new)


def pair_of(line: str) -> str:
    """What a line has in common with others that read the same: the function it calls, or the meshes of a send."""
    found = re.search(r"@\w+\(|source_target_pairs = \S+>", line)
    return found[0] if found else line


def callee(line: str) -> str:
    return line.partition("@")[2].partition("(")[0]


def put(lines: list[str], place: int, span: tuple[int, int], new: str) -> None:
    lines[place] = lines[place][: span[0]] + new + lines[place][span[1] :]


def mistakes(text: str, seed: int) -> Iterator[str]:
    """Texts with one mistake that MLIR reads."""
    draw = random.Random(seed)
    while True:
        lines = text.splitlines()
        mistaken(draw, lines)
        with make_context():
            try:
                ir.Module.parse("\n".join(lines))
            except ir.MLIRError:
                continue
        yield "\n".join(lines)


def results(text: str, runner: Runner) -> dict[int, list[tuple[str, Any]]]:
    """What the reference interpreter makes of a program. Raises ProgramError where the proofs do."""
    with make_context():
        module = ir.Module.parse(text)
        run_passes(module, [VerifyProgram()])
        generator = np.random.default_rng(0)
        given = {
            number: runner.put(generator.normal(size=argument.spec.shape).astype(argument.spec.dtype))
            for number, argument in sorted(ProgramReader(module).program.arguments.items())
        }
        found = Interpreter(module, runner).run(given)
        return {number: [(mesh, np.asarray(value)) for mesh, value in each] for number, each in found.items()}


@pytest.mark.parametrize("name", MOVED)
def test_a_mistake_with_what_moves_is_refused_or_changes_no_numbers(name: str) -> None:
    text, runner = program_of(MOVED[name]), Runner(1)
    expected, outcomes = results(text, runner), Counter[str]()
    for _, wrong in zip(range(40), mistakes(text, 0), strict=False):
        try:
            found = results(wrong, runner)
        except ProgramError as error:
            outcomes[re.sub(r"\d+", "N", error.message)] += 1
        else:
            np.testing.assert_equal(found, expected, err_msg=wrong)
            outcomes["the same"] += 1
    assert len(outcomes) > 5, outcomes


def test_what_comes_back_is_what_left() -> None:
    """Reloads of two microbatches that take each other's values would run, and compute other numbers."""
    text = program_of(MOVED["offload"])
    one, other = (
        found[2]
        for microbatch in (0, 1)
        for line in text.splitlines()
        if "@reload_0(" in line and f"microbatch = {microbatch} " in line and (found := MOVE.search(line))
    )
    swapped = text.replace(f"@reload_0{one}", "@reload_0?").replace(f"@reload_0{other}", f"@reload_0{one}")
    with pytest.raises(ProgramError) as error:
        results(swapped.replace("@reload_0?", f"@reload_0{other}"), Runner(1))
    assert error.value.message == (
        "the reload of stage 0, microbatch 0 takes value 0 of the offload of stage 0, microbatch 1, expected value 0 "
        "of the offload of stage 0, microbatch 0"
    )


@pytest.mark.parametrize(
    ("of", "message"),
    [
        (
            r"@recompute_0\(%arg1, (%c\w*),",
            "the recompute of stage 0, microbatch 1 reads the number 2, expected 1, as the numbers for other "
            "microbatches say",
        ),
        (
            r"stablehlo.send.*handle = (\d+),.*\[\[0, 1\]\]",
            "the recompute of stage 1, microbatch 1 reads value 0 of the forward of stage 0, microbatch 2, expected "
            "value 0 of the forward of stage 0, microbatch 1, as for other microbatches",
        ),
    ],
)
def test_what_a_task_reads_is_of_its_microbatch(of: str, message: str) -> None:
    """Two values of one type that change places: each of them is used once, and dies once."""
    text = program_of(MOVED["recompute"])
    _, one, other, *_ = re.finditer(of, text)
    wrong = text[: one.start(1)] + other[1] + text[one.end(1) : other.start(1)] + one[1] + text[other.end(1) :]
    with pytest.raises(ProgramError) as error:
        results(wrong, Runner(1))
    assert error.value.message == message
    call = f"@recompute_{message[len('the recompute of stage ')]}("
    line = next(n for n, line in enumerate(wrong.splitlines(), 1) if call in line and "microbatch = 1 " in line)
    assert f":{line}:" in str(error.value.source)
