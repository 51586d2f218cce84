"""Generated runs of the tools: a command of a lit test, with other inputs, other passes or other arguments."""

import contextlib
import importlib
import io
import os
import random
import re
import shlex
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

import numpy as np
import runline
from fuzz.mutations import NUMBERS, WORDS, edited, mutated, rearranged
from jaxlib.mlir import ir

from jaxpp import schedules
from jaxpp._compat import make_context
from jaxpp.hlo_passes import PASSES, PIPELINES
from jaxpp.ir.errors import PassError
from jaxpp.schedules.errors import ScheduleError
from jaxpp.tools import diagnostics, source
from jaxpp.tools.isolate import CrashError
from jaxpp.tools.pipeline_text import Option, options_of, quote
from jaxpp.tools.reductions import REDUCTIONS, clean

LIT = Path(__file__).parents[1] / "lit"
TOOLS = ("jaxpp-opt", "jaxpp-execute", "jaxpp-bisect", "jaxpp-reduce", "jaxpp-schedule")
LARGEST = 20_000
"""The bytes of the largest input: a few tests of passes have much larger ones, which take long."""
FOREIGN = (
    *("canonicalize", "cse", "symbol-dce", "inline", "sccp", "func.func(cse)", "canonicalize{top-down=false}"),
    *("stablehlo-aggressive-simplification", "stablehlo-refine-shapes", "stablehlo-legalize-to-vhlo", "no-such-pass"),
    *("chlo-legalize-to-stablehlo", "sdy-propagation-pipeline", "sdy-close-shardings", "strip-debuginfo"),
)
"""Passes that jaxlib has."""
PATHS = ("-", "none.txt", "nowhere/none.txt", ".", "", "out.mlir", "out.npz", "out.svg", "out.pdf", "out.json")
TESTS = ("true", "false", "cat", "grep -q stablehlo", "exit 3", "no-such-command", "sleep 1", "kill -9 $$;")
"""Commands for `--test`."""
OF_FLAGS = {
    "--test": TESTS,
    "--seconds": ("0", "0.1", "-1", "nan", "x"),
    "--timeout": ("1", "2", "0", "x"),
    "--steps": ("1", "2", "0", "x"),
}
"""Values of flags with which the tool runs a command, or takes as long as they say."""
NEVER = {"--help", "--debug", "--seconds", "--timeout", "--test", "--steps"}
"""Flags that aren't put in: `--debug` prints the traceback, and others take the time that they say."""


@dataclass
class Invocation:
    """A run of a tool: its name, its arguments, its stdin, and the files in its folder; `words` say what is odd."""

    tool: str
    arguments: list[str]
    stdin: bytes = b""
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    words: list[str] = field(default_factory=list[str])

    def __str__(self) -> str:
        return shlex.join([self.tool, *self.arguments])

    @property
    def run(self) -> Callable[[], runline.Result]:
        """Runs it in this process, in the current folder."""
        main = importlib.import_module(runline.tool_modules()[self.tool]).main
        return partial(runline.call, main, *self.arguments, stdin=self.stdin)


def make_invocation(seed: int) -> Invocation:
    """Returns the run of a seed."""
    draw = random.Random(f"{seed} tools")
    path, line, place = draw.choice(_commands())
    made = _of_a_test(path, line, place)
    ways = {_other_input: 6, _smaller: 6, _other_passes: 6, _other_arguments: 3, _bytecode: 1}
    for way in draw.choices(list(ways), list(ways.values()), k=draw.choice((1, 1, 1, 2))):
        way(draw, made)
    return made


@cache
def _commands() -> list[tuple[Path, int, int]]:
    """Returns the commands of all lit tests: the test, the number of the line, the number in the line."""
    weights = {"jaxpp-opt": 1, "jaxpp-execute": 4, "jaxpp-bisect": 4, "jaxpp-reduce": 3, "jaxpp-schedule": 6}
    found: list[tuple[Path, int, int]] = []
    for path in sorted([*LIT.rglob("*.mlir"), *LIT.rglob("*.test")]):
        if path.parent.name == "Inputs" or path.stat().st_size > LARGEST:
            continue
        for line, commands in enumerate(runline.pipelines(path, Path("unused"))):
            for place, command in enumerate(commands):
                found += [(path, line, place)] * weights.get(command.tool, 0)
    return found


@cache
def _folder() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix="jaxpp-fuzz-")


@cache
def _lines(path: Path) -> tuple[Path, list[list[runline.Command]]]:
    """Returns where a lit test writes, and its commands."""
    temporary = Path(_folder().name) / str(path.relative_to(LIT)).replace("/", "-")
    return temporary, runline.pipelines(path, temporary)


@cache
def _output(path: Path, line: int, place: int) -> bytes:
    """Runs a command of a lit test and those before it in its line; returns what it prints. It writes its files."""
    command, stdin = _lines(path)[1][line][place], _stdin(path, line, place)
    if command.tool == "filecheck":
        return b""
    output = Invocation(command.tool, list(command.arguments), stdin).run().stdout
    if command.output is not None:
        command.output.write_bytes(output)
    return output


def _stdin(path: Path, line: int, place: int) -> bytes:
    return _output(path, line, place - 1) if place else b""


def _of_a_test(path: Path, line: int, place: int) -> Invocation:
    """Returns a command of a lit test, with copies of its files. Only the commands run that make these."""
    temporary, lines = _lines(path)
    command = lines[line][place]
    if any(str(temporary) in word for word in command.arguments):
        for earlier, commands in enumerate(lines[:line]):
            _output(path, earlier, len(commands) - 1)
    stdin = _stdin(path, line, place)
    made = Invocation(command.tool, [], stdin, words=[command.tool])
    for word in command.arguments:
        is_output = made.arguments[-1:] in (["-o"], ["--save"], ["--trace"], ["--reproducer"])
        if os.path.isfile(word) and not is_output:
            name = Path(word).name
            made.files[name] = Path(word).read_bytes()
            made.arguments.append(name)
        else:
            made.arguments.append(Path(word).name if is_output else word)
    return made


def _other_input(draw: random.Random, made: Invocation) -> None:
    """Changes a file or stdin, which may be a schedule of the library, or arrays."""
    if made.tool == "jaxpp-schedule" and draw.random() < 0.7:
        _schedule_file(draw, made)
    if made.tool == "jaxpp-execute" and draw.random() < 0.5:
        written, shape = io.BytesIO(), draw.choice(((2,), (4,), (2, 2), ()))
        np.savez(written, arg0=np.ones(shape, draw.choice(("float32", "int8", "O"))), arg1=np.ones(4, np.float32))
        made.files["given.npz"] = written.getvalue()
        made.arguments += ["--inputs", "given.npz"]
    names = sorted(made.files) + ["-"] * bool(made.stdin)
    if not names:
        return
    name = draw.choice(names)
    data = made.stdin if name == "-" else made.files[name]
    if name.endswith(".mlir") and draw.random() < 0.8:
        parts = list(source.split(data))
        if "--split-input-file" not in made.arguments:
            data = draw.choice(parts).strip() + b"\n"
    start = 4 if data.startswith(source.BYTECODE_MAGIC) else 0
    is_text = not start and not name.endswith(".npz")
    way = draw.choice((*(3 * ["edited"]), "mutated")) if is_text else "mutated"
    if way == "edited":
        data = edited(draw, data.decode(errors="replace")).encode(errors="replace")
    else:
        data = mutated(draw, data, min(start, len(data)))
    made.words.append(f"{way} input")
    if name == "-":
        made.stdin = data
    else:
        made.files[name] = data


def _smaller(draw: random.Random, made: Invocation) -> None:
    """Takes operations, functions, results or attributes out of a module, as `jaxpp-reduce` does: MLIR accepts it."""
    names = [name for name in sorted(made.files) if name.endswith(".mlir")]
    if not names:
        return
    name = draw.choice(names)
    part = draw.choice(list(source.split(made.files[name])))
    context = make_context()
    with context, ir.Location.unknown(), diagnostics.collected(context, name):
        for _ in range(draw.choice((1, 2, 4))):
            try:
                module = ir.Module.parse(part, context)
            except ir.MLIRError:
                break
            reduction = draw.choice(REDUCTIONS)
            sites = reduction.sites(module)
            sites = [each for each in sites if draw.random() < 2 / len(sites)]
            with contextlib.suppress(ir.MLIRError, ValueError, PassError, ScheduleError, CrashError):
                module = reduction.apply(module, sites) if sites else module
                clean(module)
                if module.operation.verify():
                    part = str(module).encode()
    made.files[name] = part.strip() + b"\n"
    made.words.append("smaller module")


def _schedule_file(draw: random.Random, made: Invocation) -> None:
    """Gives a tool of schedules a file of the library, and costs."""
    is_csv = draw.random() < 0.3
    for _ in range(9):
        try:
            meshes, microbatches = draw.choice((1, 2, 3, 4)), draw.choice((1, 2, 3, 8))
            plan = schedules.make(draw.choice(schedules.names()), meshes=meshes, microbatches=microbatches)
            text = plan.to_csv(draw.random() < 0.5) if is_csv else str(plan)
            break
        except schedules.ScheduleError:
            continue
    else:
        return
    name = "given.csv" if is_csv else "given.txt"
    made.files[name] = text.encode()
    made.files["costs.toml"] = draw.choice(
        (
            b"forward = 1\ninput_grad = [1, 2.5]\nweight_grad = [1.0, 0.5]\nhop = 0.25\nunit = 'ms'\n",
            b'{"forward": [1, 2], "hop": 0.1, "stages": [1, 2]}',
            b"[forward]\nx = 1\n",
        )
    )
    command = draw.choice(
        (
            *("show NAME", "simulate NAME --costs costs.toml", "simulate NAME --json", "compare NAME 1f1b --meshes 2"),
            *("convert NAME --to csv", "convert NAME --to trace", "plot NAME -o out.svg", "compare NAME NAME"),
            "improve NAME --seconds 0.1 --costs costs.toml",
            "search --meshes 2 --microbatches 3 --seconds 0.1 --costs costs.toml",
            "tune --meshes 2 --microbatches 2 --seconds 0.1 --costs costs.toml",
        )
    )
    made.arguments = [word.replace("NAME", name) for word in shlex.split(command)]


def _bytecode(draw: random.Random, made: Invocation) -> None:
    """Changes bytes of the bytecode of a module, or of its portable artifact."""
    names = [name for name in sorted(made.files) if name.endswith(".mlir")]
    if not names:
        return
    name = draw.choice(names)
    passes = ["-p", "stablehlo-legalize-to-vhlo"] if draw.random() < 0.4 else []
    bytecode = Invocation("jaxpp-opt", ["-", "--emit-bytecode", *passes], made.files[name]).run().stdout
    if not bytecode:
        return
    made.files[name] = mutated(draw, bytecode, 4) if draw.random() < 0.9 else bytecode
    made.words.append("bytecode" + " of VHLO" * bool(passes))


def _other_passes(draw: random.Random, made: Invocation) -> None:
    """Takes other passes: those of a pipeline in another order, or any; with options."""
    if made.tool in ("jaxpp-schedule", "jaxpp-execute"):
        return
    made.words.append("passes")
    arguments = iter(made.arguments)
    taking = ("-p", "--passes", "--pass-pipeline", "--pipeline", "--schedule", "--meshes", "--test")
    made.arguments = [word for word in arguments if not (word in taking and next(arguments, ""))]
    own = [*PASSES, *FOREIGN]
    if draw.random() < 0.7:
        names = [step.name for step in PIPELINES["mpmd"](schedule="1f1b", meshes=2)]
        names = rearranged(draw, names[: draw.randrange(len(names) + 1)], own)
    else:
        names = draw.choices(own, k=draw.choice((1, 1, 2, 3)))
    often = draw.choice((0.02, 0.3))
    text = ",".join(_with_options(draw, name, often) for name in names)
    if draw.random() < 0.1:
        text = edited(draw, text)
    made.arguments += ["-p", f"builtin.module({text})" if draw.random() < 0.2 else text]
    if made.tool == "jaxpp-reduce" and "--expect" not in made.arguments:
        made.arguments += ["--expect", draw.choice(("error", "e", "stablehlo", "("))]
    if draw.random() < 0.1 and made.tool == "jaxpp-opt":
        made.arguments.append(draw.choice(("--validate", "--isolate", "--mlir-timing", "--op-stats")))


def _with_options(draw: random.Random, name: str, often: float) -> str:
    """Returns a pass, now and then with options."""
    options = options_of(PASSES[name]) if name in PASSES else ()
    given = [f"{each.name}={_value(draw, each)}" for each in options if draw.random() < often]
    if name == "find-microbatch-loop" and not given:
        given = ["schedule=1f1b", "meshes=2"]
    return f"{name}{{{' '.join(given)}}}" if given else name


def _value(draw: random.Random, option: Option) -> str:
    """Returns a value of an option, of its type as a rule."""
    kind = option.type if draw.random() < 0.9 else draw.choice((int, str, bool))
    if kind is bool:
        return draw.choice(("true", "false", "1", "maybe"))
    if kind is int:
        return draw.choice(NUMBERS)
    names = (*schedules.names(), "0", "0 1", "0,1", "1 0 x", "all", "none", "auto", "pair", "chunk", "1e9", "0:1", "no")
    return quote(draw.choice((*names, *PATHS, *WORDS)))


def _other_arguments(draw: random.Random, made: Invocation) -> None:
    """Drops, changes or adds arguments."""
    made.words.append("arguments")
    for _ in range(draw.choice((1, 1, 2, 4))):
        at = draw.randrange(len(made.arguments) + 1)
        match draw.randrange(4):
            case 0:
                del made.arguments[at : at + draw.choice((1, 2))]
            case 1 if at < len(made.arguments):
                made.arguments[at] = _argument(draw, made.arguments[at - 1] if at else "", made.arguments[at])
            case _:
                flags = [each for each in _flags(made.tool) if each[0] not in NEVER]
                name, takes = draw.choice(flags)
                value = [_argument(draw, name, takes)] * bool(takes and draw.random() < 0.95)
                made.arguments[at:at] = [f"{name}={value[0]}"] if value and draw.random() < 0.3 else [name, *value]


def _argument(draw: random.Random, flag: str, before: str) -> str:
    """Returns a value for a flag; `before` is the one that it had, or what the help calls it."""
    if flag in OF_FLAGS:
        return draw.choice(OF_FLAGS[flag])
    if before and draw.random() < 0.3:
        return edited(draw, before).replace("\x00", "")
    if re.fullmatch(r"N|T|X|S|TIME|VALUE|[\d.]+", before) and draw.random() < 0.7:
        return draw.choice(NUMBERS)
    words = (
        *PATHS,
        *schedules.names(),
        *PASSES,
        *FOREIGN,
        *PIPELINES,
        *WORDS,
        "os:path",
        "none.such:Pass",
        "given.txt",
    )
    return draw.choice(words).replace("\x00", "")


@cache
def _flags(tool: str) -> tuple[tuple[str, str], ...]:
    """Returns the flags that the help of a tool names, and what they take; "" for nothing."""
    commands: Sequence[list[str]] = [[]]
    if tool == "jaxpp-schedule":
        commands = [[name] for name in ("show", "simulate", "compare", "search", "improve", "tune", "convert", "plot")]
    texts = [Invocation(tool, [*command, "--help"]).run().stdout.decode() for command in commands]
    found = {
        name: takes
        for text in texts
        for line in re.findall(r"^  (-.*?)(?:  |$)", text, re.MULTILINE)
        for name, takes in re.findall(r"(--?[\w-]+)(?: \[?([A-Z{][^ ,\]]*))?", line)
    }
    return tuple(sorted(found.items()))
