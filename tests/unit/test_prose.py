"""The prose of most rooms and all pages: docstrings begin with what a function does, sentences are short and plain."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = (
    "hlo_passes",
    "ir",
    "jaxpp/checkpoint",
    "jaxpp/doctor",
    "jaxpp/experimental",
    "jaxpp/healing",
    "jaxpp/planning",
    "jaxpp/ray",
    "lowering",
    "runtime",
    "schedules/search",
    "tools",
    "validation",
)
FILES = [path.relative_to(ROOT) for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
PAGES = [path.relative_to(ROOT) for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])]
LONGEST = 28
"""The most words of a sentence. Most have at most 25."""
NOT_PLAIN = re.compile(
    r"\b(likewise|hitherto|thereby|reckon\w*|such a one|as ever|mend(s|ed|ing)?|of the user's(?! \w)|what nobody)\b",
    re.IGNORECASE,
)
"""Words and turns that a reader has to translate."""
HELP = "tools/schedule.py"
"""Its docstrings are the help of commands, in the imperative."""
_ENTRY = re.compile(r"\n\s*(?:[-*] |`?\w+`?(?:, `?\w+`?)*: |\w+:\n)|\n\s*\n")


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Yields (line, text) of each docstring without its code blocks, and of each comment."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, re.sub(r"```.*?```", "", node.value.value, flags=re.DOTALL)
    lines: list[str] = []
    first = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not re.match(r"#( type| noqa| pyright| ruff|!)", token.string):
            first = first if lines else token.start[0]
            lines.append(token.string.lstrip("# "))
        elif token.type not in (tokenize.NL, tokenize.NEWLINE) and lines:
            yield first, "\n".join(lines)
            lines = []


def paragraphs(page: str) -> Iterator[tuple[int, str]]:
    """Yields (line, text) of each paragraph of a page that is no code, table or heading."""
    text = re.sub(r"^```.*?^```$", lambda code: "\n" * code[0].count("\n"), page, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"\]\([^)\s]*\)", "]", text)
    for block in re.finditer(r"(?:^(?![|#>]|\s*$|<| {4}).*\n?)+", text, re.MULTILINE):
        yield text.count("\n", 0, block.start()) + 1, block[0]


def sentences(text: str) -> list[str]:
    """Returns the sentences of a text; each entry of a list is at least one."""
    parts = _ENTRY.split(re.sub(r"`[^`]*`", "code", text))
    return [each for part in parts for each in re.split(r"(?<=[.;:?!])\s+", part.strip())]


@pytest.mark.parametrize("path", [*FILES, *PAGES], ids=str)
def test_sentences_are_short_and_words_plain(path: Path) -> None:
    for line, text in (paragraphs if path.suffix == ".md" else prose)((ROOT / path).read_text()):
        found = NOT_PLAIN.search(text)
        assert found is None, f"{path}:{line}: say '{found and found[0]}' in plain words"
        for sentence in sentences(text):
            count = len(sentence.split())
            assert count <= LONGEST, f"{path}:{line}: a sentence of {count} words: {sentence[:80]}"


@pytest.mark.parametrize("path", [path for path in FILES if str(path) != HELP], ids=str)
def test_docstrings_of_functions_begin_with_what_they_do(path: Path) -> None:
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.FunctionDef) and not any(
            "property" in ast.unparse(each) for each in node.decorator_list
        ):
            first = (ast.get_docstring(node) or "Returns").partition("\n")[0]
            assert re.match(r"(Whether|See|[A-Z]\w+s)\b", first), f"{path}:{node.lineno}: {first}"
