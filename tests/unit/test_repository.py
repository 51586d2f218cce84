"""What no linter knows: that CHECK lines are read by filecheck, where private names live, which room imports which."""

import ast
import difflib
import re
from collections.abc import Iterator
from pathlib import Path

import runline
from filecheck.options import Options
from filecheck.parser import pattern_for_opts

ROOT = Path(__file__).parents[2]
LIT = ROOT / "tests" / "lit"
ROOMS = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))

# Arrows point down. `_compat`, and the files that it stands on, are files of the room `jaxpp` with arrows of their own.
BASEMENT = {"_compat", "_versions", "_xla"}
MAY_IMPORT = {
    "schedules": set[str](),
    "_compat": set[str](),
    "hlo_passes": {"schedules", "_compat"},
    "lowering": {"schedules", "_compat"},
    "runtime": {"schedules", "_compat"},
    "jaxpp": {"jaxpp", "lowering", "hlo_passes", "runtime", "schedules", "_compat"},
    "tools": {"jaxpp", "lowering", "hlo_passes", "runtime", "schedules", "_compat"},
}
PRIVATE_NAME = re.compile(r"\bjax(?:lib)?(?:\.\w+)*\._(?!_)\w+|\bfrom jax(?:lib)?(?:\.\w+)* import _(?!_)\w+")
MAX_LINES = 500

# A comment's first word, and what follows it up to the text.
FIRST_WORD = re.compile(r"([A-Za-z][\w-]*)(?:\{\w+\})?(\s*:)?")
NOT_FILECHECKS = {"RUN", "COM", "REQUIRES", "UNSUPPORTED", "XFAIL", "TODO", "NOTE"}
# What MLIR's printer numbers: %0, %cst_3.
PRINTERS_NAME = re.compile(r"%(?:\d+|c(?:st)?_\d+)\b")
PATTERN_BLOCK = re.compile(r"\{\{.*?\}\}|\[\[.*?\]\]")


def test_every_check_line_is_one_that_filecheck_reads() -> None:
    problems = [problem for path in lit_files() for problem in misread_directives(path)]
    assert not problems, "\n".join(problems)


def test_lit_files_begin_with_run_and_check_something() -> None:
    problems = [problem for path in lit_files() for problem in missing_lines(path)]
    assert not problems, "\n".join(problems)


def test_check_lines_capture_ssa_names() -> None:
    problems = [problem for path in lit_files() for problem in literal_names(path)]
    assert not problems, "\n".join(problems)


def test_private_jax_names_live_in_compat() -> None:
    folders = [*ROOMS, "benchmarks", "examples", "tests"]
    files = [path for folder in folders for path in python_files(folder) if path != ROOT / "jaxpp" / "_compat.py"]
    problems = [problem for path in files for problem in private_names(path)]
    assert not problems, "\n".join(problems)


def test_layers_point_one_way() -> None:
    problems = [problem for room in ROOMS for path in python_files(room) for problem in wrong_imports(path, room)]
    assert not problems, "\n".join(problems)


def test_schedules_know_neither_jax_nor_mlir() -> None:
    problems = [
        f"{shown(path)}:{line}: schedules are data and import no {name.partition('.')[0]}"
        for path in python_files("schedules")
        for line, name in imports(path)
        if name.partition(".")[0] in {"jax", "jaxlib"}
    ]
    assert not problems, "\n".join(problems)


def test_files_are_short() -> None:
    lengths = {
        path: len(path.read_text(encoding="utf-8").splitlines()) for room in ROOMS for path in python_files(room)
    }
    problems = [f"{shown(path)}: {n} lines, at most {MAX_LINES}" for path, n in lengths.items() if n > MAX_LINES]
    assert not problems, "\n".join(problems)


def test_misread_directives_are_seen(tmp_path: Path) -> None:
    wrong = [
        "// CHECK-NXT: a",
        "// CHEKC: a",
        "// CHECK-NEXT : a",
        "// CHECK NEXT: a",
        "// CHECK_SAME: a",
        "// CHECK-LABEL @f",
        "// Check-Next: a",
        "// XCHECK: a",
        "// OTHER: a",
        "// PROGRAM-NXT: a",
        "// CHECK-COUNT: a",
        "// CHECK: RUN CHECK",
    ]
    right = [
        "// CHECK: a",
        "//CHECK-NEXT: a",
        "  // CHECK-COUNT-2: a",
        "// CHECK-SAME{LITERAL}: a",
        "// PROGRAM-LABEL: a",
        "// Check that this is prose: with a colon.",
        "// NOTE: a",
        "// COM: CHECK: not this one",
        "// A CHECK line",
        'func.func @check() attributes {CHECK = "a"}',
    ]
    path = tmp_path / "a.mlir"
    run = "// RUN: jaxpp-opt %s | filecheck %s\n// RUN: jaxpp-opt %s | filecheck %s --check-prefix=PROGRAM\n"
    for line in wrong:
        path.write_text(f"{run}{line}\n", encoding="utf-8")
        assert len(misread_directives(path)) == 1, line
    path.write_text(run + "\n".join(right), encoding="utf-8")
    assert misread_directives(path) == []


def test_missing_lines_are_seen(tmp_path: Path) -> None:
    path = tmp_path / "a.mlir"
    path.write_text("\n// RUN: jaxpp-opt %s | filecheck %s --check-prefix PROGRAM\n// CHECK: a\n", encoding="utf-8")
    assert [problem.partition(": ")[2] for problem in missing_lines(path)] == [
        "the first line is no RUN line",
        "no line of prefix PROGRAM",
    ]


def test_literal_names_are_seen(tmp_path: Path) -> None:
    path = tmp_path / "a.mlir"
    path.write_text(
        "// RUN: jaxpp-opt %s | filecheck %s\n"
        "// CHECK: %[[A:.*]] = add %[[B]], %arg0\n// CHECK: {{%0}} [[C:%1]]\n// CHECK: add %[[A]], %12\n%0 = f()\n",
        encoding="utf-8",
    )
    assert literal_names(path) == [f"{shown(path)}:4: '%12' is the printer's choice; capture it: %[[NAME:.*]]"]


def test_wrong_imports_are_seen(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(
        "import jaxpp.schedules.task\nfrom jaxpp import _compat, hlo_passes, runtime\nfrom . import b\nimport jaxpp\n"
        "def f():\n    from jaxpp.tools.opt import main\nimport jaxlib.mlir.ir\n",
        encoding="utf-8",
    )
    lines = [problem.split(":")[1:] for problem in wrong_imports(path, "runtime")]
    assert lines == [
        ["2", " runtime must not import hlo_passes"],
        ["3", " a relative import"],
        ["4", " runtime must not import jaxpp"],
        ["6", " runtime must not import tools"],
    ]


def test_private_names_are_seen(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    names = ["import jax.{}src.core", "from jax import {}src", "from jaxlib import {}jax", "jaxlib.mlir.{}mlir_libs"]
    path.write_text("\n".join(name.format("_") for name in names) + "\njax.__version__\njax.lax.scan\n")
    assert len(private_names(path)) == len(names)


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name)


def lit_files() -> list[Path]:
    found = (path for suffix in ("mlir", "test") for path in LIT.glob(f"**/*.{suffix}"))
    return sorted(path for path in found if path.parent.name != "Inputs")


def python_files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def check_prefixes(path: Path) -> list[str]:
    """The prefixes that the filecheck commands of `path` look for, in order, each once."""
    commands = [command for pipeline in runline.pipelines(path, path) for command in pipeline]
    options = [runline.filecheck_options(c.arguments) for c in commands if c.tool == "filecheck"]
    return list(dict.fromkeys(prefix for option in options for prefix in option.check_prefixes))


def comments(path: Path) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        _, slashes, comment = line.partition("//")
        if slashes:
            yield number, comment.lstrip("/ \t")


def misread_directives(path: Path) -> list[str]:
    """Comments that a reader takes for a directive and filecheck doesn't: it drops those without a word."""
    prefixes = check_prefixes(path)
    directive, skipped = pattern_for_opts(Options("", check_prefixes=prefixes))
    problems: list[str] = []
    for number, comment in comments(path):
        word = FIRST_WORD.match(comment)
        if word is None or word[1] in NOT_FILECHECKS:
            continue
        if directive.match(comment):
            if skipped.search(comment):
                problems.append(f"{shown(path)}:{number}: filecheck skips a line with COM or RUN before a prefix")
            continue
        is_upper, has_colon = word[1].isupper(), word[2] is not None
        resembles = any(
            difflib.SequenceMatcher(None, re.split("[-_]", word[1])[0].upper(), prefix).ratio() > 0.75
            for prefix in prefixes
        )
        if (is_upper and (has_colon or resembles)) or (resembles and has_colon):
            problems.append(
                f"{shown(path)}:{number}: filecheck knows no directive {word[0]!r} (prefixes: {', '.join(prefixes)})"
            )
    return problems


def missing_lines(path: Path) -> list[str]:
    problems: list[str] = []
    text = path.read_text(encoding="utf-8")
    if not runline.RUN.match(text.partition("\n")[0]):
        problems.append(f"{shown(path)}: the first line is no RUN line")
    prefixes = check_prefixes(path)
    if not prefixes:
        problems.append(f"{shown(path)}: no RUN line ends in filecheck")
    for prefix in prefixes:
        directive, _ = pattern_for_opts(Options("", check_prefixes=[prefix]))
        if not any(directive.match(comment) for _, comment in comments(path)):
            problems.append(f"{shown(path)}: no line of prefix {prefix}")
    return problems


def literal_names(path: Path) -> list[str]:
    directive, _ = pattern_for_opts(Options("", check_prefixes=check_prefixes(path)))
    return [
        f"{shown(path)}:{number}: {name!r} is the printer's choice; capture it: %[[NAME:.*]]"
        for number, comment in comments(path)
        if directive.match(comment)
        for name in PRINTERS_NAME.findall(PATTERN_BLOCK.sub("", comment))
    ]


def private_names(path: Path) -> list[str]:
    return [
        f"{shown(path)}:{number}: {found[0]!r} is private to JAX; give it a name in jaxpp/_compat.py"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for found in PRIVATE_NAME.finditer(line)
    ]


def imports(path: Path) -> list[tuple[int, str]]:
    """Each imported module, or `module.name` of a `from` import, with its line; relative ones keep their dots."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found += [(node.lineno, f"{module}.{alias.name}") for alias in node.names]
    return sorted(found)


def wrong_imports(path: Path, room: str) -> list[str]:
    if path.parent == ROOT / "jaxpp" and path.stem in BASEMENT:
        room = "_compat"
    problems: list[str] = []
    for line, name in imports(path):
        if name.startswith("."):
            problems.append(f"{shown(path)}:{line}: a relative import")
        if name.split(".")[0] != "jaxpp":
            continue
        part = name.split(".")[1] if "." in name else ""
        target = "_compat" if part in BASEMENT else part if part in MAY_IMPORT else "jaxpp"
        if target != room and target not in MAY_IMPORT[room]:
            problems.append(f"{shown(path)}:{line}: {room} must not import {target}")
    return problems
