"""Modules with mistakes in them: each pass, and the whole pipeline, says what is wrong, or takes them.

The mistakes are made at random, one to three in each text; the seeds are fixed. More of them, and others:

    python tests/unit/hlo_passes/test_mutations.py SEED COUNT
"""

import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import runline
from jaxlib.mlir import ir

from jaxpp._compat import make_context
from jaxpp.hlo_passes import PASSES
from jaxpp.ir.errors import PassError
from jaxpp.runtime import ProgramError, load
from jaxpp.tools import diagnostics, opt, source, streams

LIT = Path(__file__).parents[2] / "lit"
ATTRIBUTE = re.compile(
    r"((?:jaxpp|mhlo|sdy|tf|jax)\.\w+|length|stages|indices|starts|steps|slices|schedule|stage|phase|state|delay|dims|sizes)"
    r' = (array<[^>]*>|"(?:[^"\\]|\\.)*"|\{[^{}]*\}|\[[^\]]*\]|[-\w.]+(?: : \w+)?)'
)
NUMBER = re.compile(r"(?<![\w%@.x-])-?\d+(?![\w.])")
NAME = re.compile(r"%\w+(?:#\d+)?")
SYMBOL = re.compile(r"@\w+")
TYPE = re.compile(r"tensor<[^<>]*>")
CONSTANT = re.compile(r"dense<[^<>]*>")
OPERATION = re.compile(r"(?<== )(?:stablehlo|chlo)\.\w+")
DROPPED = re.compile(r"^ *(%\w+) = \S+ .*?(%\w+(?:#\d+)?).*[^{\n]\n", re.MULTILINE)
VALUES = (
    *("-1 : i64", "0 : i64", "7 : i64", "9999999999 : i64", "9223372036854775807 : i64", "1.5 : f32", "true", "unit"),
    *('"x"', '"forward"', "[]", "{}", "array<i64>", "array<i64: 1, 0>", "@mesh_0"),
)
TYPES = (
    "tensor<f32>",
    "tensor<0xf32>",
    "tensor<?xf32>",
    "tensor<4xcomplex<f32>>",
    "tensor<ui8>",
    "tensor<3x4xbf16>",
    "tensor<i1>",
)
CONSTANTS = ("0", "1", "-1", "0.0", "0x7FC00000", "true", "[]", "100000", "2147483647")
OPERATIONS = "tanh negate optimization_barrier sqrt add multiply subtract maximum and remainder".split()
ELEMENTS = ("bf16", "f64", "i8", "ui8", "i32", "complex<f32>", "i1")
REQUIRED = {"mark-stages": 'mark-stages{after="layer0"}'}
"""The passes with an option that has to be given."""
SCHEDULES = ("1f1b", "gpipe", "zb-h1", "1f1b{chunks=2}", "chimera", "dualpipe")


def texts(path: Path) -> list[str]:
    """The modules of a lit test, without their comments; one may be wrong to begin with."""
    parts = re.split(r"^// -----$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    found = [re.sub(r"^ *//.*\n", "", part, flags=re.MULTILINE) for part in parts]
    return [text for text in found if NAME.search(text)]


def mistaken(generator: random.Random, text: str) -> str:
    """`text` with a line gone, moved or twice, or with another attribute, number, name, symbol, type or operation."""

    def put(pattern: re.Pattern[str], new: Callable[[re.Match[str]], str]) -> str:
        places = list(pattern.finditer(text))
        if not places:
            return text
        place = generator.choice(places)
        return text[: place.start()] + new(place) + text[place.end() :]

    lines = text.splitlines()
    place, other = generator.randrange(len(lines)), generator.randrange(len(lines))
    match generator.randrange(13):
        case 0:
            del lines[place]
        case 1:
            lines[place], lines[other] = lines[other], lines[place]
        case 2:
            lines.insert(place, lines[place])
        case 3:
            return put(NUMBER, lambda _: str(generator.choice((-1, 0, 1, 2, 7, 2**31))))
        case 4:
            return put(NAME, lambda _: generator.choice(NAME.findall(text)))
        case 5:
            return put(SYMBOL, lambda _: generator.choice(SYMBOL.findall(text)))
        case 6 | 7:
            return put(ATTRIBUTE, lambda found: f"{found[1]} = {generator.choice(VALUES)}")
        case 8:
            return put(ATTRIBUTE, lambda found: f"other.name = {found[2]}")
        case 9:
            return put(TYPE, lambda _: generator.choice([*TYPE.findall(text), *TYPES]))
        case 10:
            return put(CONSTANT, lambda _: f"dense<{generator.choice(CONSTANTS)}>")
        case 11:
            return put(OPERATION, lambda _: f"stablehlo.{generator.choice(OPERATIONS)}")
        case _:
            return dropped(generator, text) if generator.random() < 0.5 else retyped(generator, text)
    return "\n".join(lines)


def dropped(generator: random.Random, text: str) -> str:
    """`text` without an operation: an operand stands in the place of its result."""
    places = list(DROPPED.finditer(text))
    if not places:
        return text
    place = generator.choice(places)
    return re.sub(rf"{place[1]}\b(?!#)", place[2], text[: place.start()] + text[place.end() :])


def retyped(generator: random.Random, text: str) -> str:
    """`text` with another element type, everywhere."""
    new = generator.choice(ELEMENTS)
    return re.sub(r"(?<=[x<])f32(?=>)", new, text)


def parses(text: str) -> bool:
    with make_context() as context, diagnostics.collected(context, "-"):
        try:
            source.parse(text.encode(), "-", context, whole=True)
        except (streams.InputError, PassError):
            return False
    return True


def answer(text: str, *arguments: str) -> tuple[int, str, str]:
    """What `jaxpp-opt` says: a result, or what is wrong; (exit code, result, messages)."""
    code, out, err = runline.call(opt.main, "-", *arguments, stdin=text).texts
    assert code in (0, 1), f"{arguments}: {err}\n{text}"
    assert (code == 1) == ("error: " in err), f"{arguments}\n{text}"
    return code, out, err


@pytest.mark.parametrize("seed", range(3))
def test_a_program_with_mistakes_is_refused_in_words_or_loaded(seed: int) -> None:
    generator = random.Random(seed)
    names = ("basic.mlir", "origins.mlir", "attributes_invalid.mlir")
    programs = [text for name in names for text in texts(LIT / "verify_program" / name)]
    outcomes: list[str] = []
    while len(outcomes) < 40:
        text = generator.choice(programs)
        for _ in range(generator.randrange(1, 4)):
            text = mistaken(generator, text) if NAME.search(text) and ATTRIBUTE.search(text) else text
        if not parses(text):
            continue
        code, out, err = answer(text, "-p", "verify-program")
        outcomes.append(err)
        if code == 0:
            with make_context():
                try:
                    load(ir.Module.parse(out))
                except ProgramError as error:
                    outcomes[-1] = str(error)
    assert len(set(outcomes)) > 10, "not all alike"


def pipeline(generator: random.Random, folder: str) -> list[str]:
    """A pass, most often that of the folder, or the whole pipeline."""
    if generator.random() < 0.4:
        schedule, meshes = generator.choice(SCHEDULES), generator.choice("1223")
        return ["--pipeline", "mpmd", "--schedule", schedule, "--meshes", meshes]
    own = folder.replace("_", "-")
    name = own if own in PASSES and generator.random() < 0.6 else generator.choice(list(PASSES))
    return ["-p", REQUIRED.get(name, name)]


def batch(seed: int, count: int) -> None:
    """Feed so many modules with mistakes to the tool; run in a process of its own, which a module may end."""
    generator = random.Random(seed)
    modules = [(path.parent.name, text) for path in sorted(LIT.rglob("*.mlir")) for text in texts(path)]
    modules = [(folder, text) for folder, text in modules if len(text) < 30_000]
    while count:
        folder, text = generator.choice(modules)
        for _ in range(generator.randrange(4)):
            text = mistaken(generator, text) if text.strip() else text
        arguments = pipeline(generator, folder)
        Path(f"module_{seed}.mlir").write_text(f"// {' '.join(arguments)}\n{text}", encoding="utf-8")
        signal.alarm(60)
        if parses(text):
            answer(text, *arguments)
            count -= 1


@pytest.mark.parametrize("seed", [1, 2])
def test_a_module_with_mistakes_is_refused_in_words_or_taken(seed: int, tmp_path: Path) -> None:
    here = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }  # the child imports helpers of the tests
    command = [sys.executable, __file__, str(seed), "250"]
    done = subprocess.run(command, cwd=tmp_path, env=here, capture_output=True, text=True, check=False)
    last = (tmp_path / f"module_{seed}.mlir").read_text(encoding="utf-8")
    assert done.returncode == 0, f"{done.stderr[-3000:]}\n{last}"


if __name__ == "__main__":
    batch(int(sys.argv[1]), int(sys.argv[2]))
