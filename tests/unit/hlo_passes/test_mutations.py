"""Programs with a mistake in them: `verify-program` says what is wrong, or `load` takes them; neither fails otherwise.

The mistakes are made at random, one to three in each text; the seed is fixed.
"""

import io
import random
import re
from pathlib import Path

import pytest
from jaxlib.mlir import ir

from jaxpp._compat import make_context
from jaxpp.runtime import ProgramError, load
from jaxpp.tools import opt

LIT = Path(__file__).parents[2] / "lit" / "verify_program"
ATTRIBUTE = re.compile(r'(jaxpp\.\w+|tf\.aliasing_output|jax\.buffer_donor) = (array<[^>]*>|"[^"]*"|[-\w]+(?: : \w+)?)')
NUMBER = re.compile(r"(?<![\w%@.x-])-?\d+(?![\w.])")
NAME = re.compile(r"%\w+(?:#\d+)?")
SYMBOL = re.compile(r"@\w+")
VALUES = ("-1 : i64", "7 : i64", '"x"', "true", "[]", "array<i64>", "array<i64: 1, 0>", "@mesh_0", "9999999999 : i64")


def texts() -> list[str]:
    """The programs of the lit tests, without their comments; a part may be wrong to begin with."""
    whole = "\n".join((LIT / name).read_text() for name in ("basic.mlir", "peaks.mlir", "attributes_invalid.mlir"))
    parts = re.split(r"^// -----$", whole, flags=re.MULTILINE)
    return [re.sub(r"^ *//.*\n", "", part, flags=re.MULTILINE) for part in parts]


def mistaken(generator: random.Random, text: str) -> str:
    """`text` with a line gone, moved or twice, or with another attribute, number, name or symbol."""

    def put(pattern: re.Pattern[str], new: str) -> str:
        found = generator.choice(list(pattern.finditer(text)))
        return text[: found.start()] + new + text[found.end() :]

    lines = text.splitlines()
    place, other = generator.randrange(len(lines)), generator.randrange(len(lines))
    choice = generator.randrange(7)
    if choice == 0:
        del lines[place]
    elif choice == 1:
        lines[place], lines[other] = lines[other], lines[place]
    elif choice == 2:
        lines.insert(place, lines[place])
    elif choice == 3:
        return put(NUMBER, str(generator.choice((-1, 0, 1, 2, 7, 2**31))))
    elif choice == 4:
        return put(NAME, generator.choice(NAME.findall(text)))
    elif choice == 5:
        return put(SYMBOL, generator.choice(SYMBOL.findall(text)))
    else:
        name = generator.choice(ATTRIBUTE.findall(text))[0]
        return put(ATTRIBUTE, f"{name} = {generator.choice(VALUES)}")
    return "\n".join(lines)


def parses(text: str) -> bool:
    with make_context():
        try:
            ir.Module.parse(text)
        except ir.MLIRError:
            return False
    return True


@pytest.mark.parametrize("seed", range(3))
def test_a_program_with_mistakes_is_refused_in_words_or_loaded(seed: int) -> None:
    generator, programs = random.Random(seed), texts()
    outcomes: list[str] = []
    while len(outcomes) < 40:
        text = generator.choice(programs)
        for _ in range(generator.randrange(1, 4)):
            text = mistaken(generator, text) if NAME.search(text) and ATTRIBUTE.search(text) else text
        if not parses(text):
            continue
        out, err = io.StringIO(), io.StringIO()
        code = opt.main(["-", "-p", "verify-program"], stdin=io.StringIO(text), stdout=out, stderr=err)
        assert code in (0, 1), f"{err.getvalue()}\n{text}"
        assert (code == 1) == ("error: " in err.getvalue()), text
        outcomes.append(err.getvalue())
        if code == 0:
            with make_context():
                try:
                    load(ir.Module.parse(out.getvalue()))
                except ProgramError as error:
                    outcomes[-1] = str(error)
    assert len(set(outcomes)) > 10, "not all alike"
