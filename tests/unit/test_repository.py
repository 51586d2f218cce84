"""What no linter knows: that CHECK lines are read by filecheck, where private names live, which room imports which."""

import ast
import difflib
import re
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import runline
from filecheck.options import Options
from filecheck.parser import pattern_for_opts

from jaxpp.ir import attributes

ROOT = Path(__file__).parents[2]
LIT = ROOT / "tests" / "lit"
ROOMS = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))

# Arrows point down. `_compat`, the files that it stands on, `_plugins` and `_system` are files of the room `jaxpp` with
# arrows of their own; every room may import the last two. A room within a room is open to whoever may import the outer
# one.
BASEMENT = dict.fromkeys(["_compat", "_versions", "_xla", "_absent", "_foreign", "_jobs", "_keys", "_rules"], "_compat")
BASEMENT.update(_system="_system", _plugins="_system")
BASEMENT["__main__"] = "tools"  # Python wants this command-line tool there
MAY_IMPORT = {
    "_system": set[str](),
    "schedules": set[str](),
    "_compat": set[str](),
    "ir": {"schedules", "_compat"},
    "hlo_passes": {"ir", "schedules", "_compat"},
    "validation": {"hlo_passes", "ir", "_compat"},
    "lowering": {"ir", "schedules", "_compat"},
    "runtime": {"ir", "schedules", "_compat"},
    "runtime.measuring": {"runtime.execution", "runtime.processes", "ir", "schedules", "_compat"},
    "runtime.execution": {"runtime.processes", "ir", "schedules", "_compat"},
    "runtime.processes": {"_compat"},
    "jaxpp": {"jaxpp", "lowering", "hlo_passes", "ir", "runtime", "schedules", "validation", "_compat"},
    "tools": {"jaxpp", "lowering", "hlo_passes", "ir", "runtime", "schedules", "validation", "_compat"},
}
PRIVATE = {ROOT / "jaxpp" / name for name in ("_compat.py", "_foreign.py", "_jobs.py", "_rules.py")}
PRIVATE_NAME = re.compile(r"\bjax(?:lib)?(?:\.\w+)*\._(?!_)\w+|\bfrom jax(?:lib)?(?:\.\w+)* import _(?!_)\w+")
MAX_LINES = 500
PUBLIC_TWICE = {"Plan"}  # `planning.Plan`, what a step takes on a target; `schedules.Plan`, a schedule in the making
ATTRIBUTES = {name for name in vars(attributes).values() if isinstance(name, str) and attributes.is_ours(name)}

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
    files = [path for folder in folders for path in python_files(folder) if path not in PRIVATE]
    problems = [problem for path in files for problem in private_names(path)]
    assert not problems, "\n".join(problems)


def test_layers_point_one_way() -> None:
    problems = [
        problem for room in ROOMS for path in python_files(room) for problem in wrong_imports(path, room_of(path))
    ]
    assert not problems, "\n".join(problems)


def test_the_phases_of_the_passes_do_not_know_one_another() -> None:
    """What two phases need stands in `ir`: a phase can be read, and replaced, alone."""
    phases = sorted(path.parent.name for path in (ROOT / "hlo_passes").glob("*/__init__.py"))
    problems = [
        f"{shown(path)}:{line}: a pass of `{phase}` must not import {name}; what both need belongs into ir/"
        for phase in phases
        for path in python_files(f"hlo_passes/{phase}")
        for line, name in imports(path)
        for other in phases
        if other != phase and f"{name}.".startswith(f"jaxpp.hlo_passes.{other}.")
    ]
    assert not problems, "\n".join(problems)


FLOORS_OF_SCHEDULES = (
    ("errors",),
    ("model",),
    ("costs",),
    ("engine",),
    ("builders",),
    ("rewrites",),
    ("library",),
    ("search",),
    ("classes", "given", "layers", "plot"),
)
"""The files and folders of `schedules/`, lowest first. Each imports only those below it, and its own."""


def test_the_floors_of_schedules_import_only_lower_ones() -> None:
    floor_of = {name: floor for floor, names in enumerate(FLOORS_OF_SCHEDULES) for name in names}
    problems: list[str] = []
    for path in python_files("schedules"):
        place = path.relative_to(ROOT / "schedules").parts[0].removesuffix(".py")
        if place == "__init__":
            continue
        for line, name in imports(path):
            other = f"{name}.".removeprefix("jaxpp.schedules.").partition(".")[0]
            if (
                name.startswith("jaxpp.schedules")
                and other != place
                and floor_of.get(other, len(floor_of)) > floor_of[place]
            ):
                problems.append(f"{shown(path)}:{line}: {place} must not import {other}")
    assert not problems, "\n".join(problems)


def test_attributes_have_their_names_from_ir() -> None:
    files = [path for room in ROOMS if room != "ir" for path in python_files(room)]
    problems = [problem for path in files for problem in literal_attributes(path)]
    assert not problems, "\n".join(problems)


def test_files_import_each_other_in_no_circle() -> None:
    files = {module_name(path): path for room in ROOMS for path in python_files(room)}
    graph = {name: {imported(each, files) for _, each in imports(path)} - {name, ""} for name, path in files.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError, which shows the circle


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


def test_no_two_classes_have_one_name() -> None:
    """One name is one thing in the whole project, private classes included."""
    found: dict[str, list[str]] = {}
    for path in (path for room in ROOMS for path in python_files(room)):
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(f"{shown(path)}:{node.lineno}")
    twice = {name: places for name, places in found.items() if len(places) > 1 and name not in PUBLIC_TWICE}
    assert not twice, twice


def test_docs_name_tests_that_exist() -> None:
    problems: list[str] = []
    for path in sorted((ROOT / "docs").glob("*.md")):
        file = ""
        for named, test in re.findall(r"`([\w/.]*)::(test_\w+)`", path.read_text(encoding="utf-8")):
            file = named or file
            where = ROOT / "tests" / "unit" / file
            if not where.is_file() or f"def {test}(" not in where.read_text(encoding="utf-8"):
                problems.append(f"{shown(path)}: there is no {file}::{test}")
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
    path.write_text(
        "from jaxpp.runtime.processes import wire\nfrom jaxpp.runtime.measuring.trace import Event\n"
        "from jaxpp import runtime\nimport jaxpp.schedules.task\n",
        encoding="utf-8",
    )
    lines = [problem.split(":")[1:] for problem in wrong_imports(path, "runtime.execution")]
    assert lines == [
        ["2", " runtime.execution must not import runtime.measuring"],
        ["3", " runtime.execution must not import runtime"],
    ]
    assert len(wrong_imports(path, "ir")) == 3
    assert wrong_imports(path, "tools") == []
    assert room_of(ROOT / "runtime" / "execution" / "steps.py") == "runtime.execution"
    assert room_of(ROOT / "jaxpp" / "_xla.py") == "_compat"
    assert room_of(ROOT / "jaxpp" / "ray" / "pool.py") == "jaxpp"


def test_literal_attributes_are_seen(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(
        '"""Of `jaxpp.stage`."""\nops["jaxpp.stage"] = "jaxpp.hlo_passes"\nraise E(f"no jaxpp.mesh_sizes on {op}")\n'
        'at.STAGE = "jaxpp.stage_function"\n',
        encoding="utf-8",
    )
    assert literal_attributes(path) == [
        f"{shown(path)}:2: 'jaxpp.stage' has a name in jaxpp.ir.attributes",
        f"{shown(path)}:3: 'jaxpp.mesh_sizes' has a name in jaxpp.ir.attributes",
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


def literal_attributes(path: Path) -> list[str]:
    """The attributes of ours that strings spell out; what only documents something may."""
    nodes = nodes_of(path)
    prose = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    return [
        f"{shown(path)}:{node.lineno}: {name!r} has a name in jaxpp.ir.attributes"
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose
        for name in re.findall(r"jaxpp\.\w+", node.value)
        if name in ATTRIBUTES
    ]


def nodes_of(path: Path) -> list[ast.AST]:
    return parsed(path.read_text(encoding="utf-8"))


@cache
def parsed(text: str) -> list[ast.AST]:
    """All nodes of a module; several tests ask for those of each."""
    return list(ast.walk(ast.parse(text)))


def module_name(path: Path) -> str:
    """`jaxpp.lowering.mesh` of `lowering/mesh.py`, `jaxpp.lowering` of `lowering/__init__.py`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("jaxpp", *parts[parts[0] == "jaxpp" :])).removesuffix(".__init__")


def imported(name: str, files: Collection[str]) -> str:
    """The one of our files that an entry of `imports` names; empty for others."""
    return next((each for each in (name, name.rpartition(".")[0]) if each in files), "")


def imports(path: Path) -> list[tuple[int, str]]:
    """Each imported module, or `module.name` of a `from` import, with its line; relative ones keep their dots."""
    found: list[tuple[int, str]] = []
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found += [(node.lineno, f"{module}.{alias.name}") for alias in node.names]
    return sorted(found)


def room_of(path: Path) -> str:
    """The room of a file: that of its folder or of the nearest one above which the table has."""
    if path.parent == ROOT / "jaxpp" and path.stem in BASEMENT:
        return BASEMENT[path.stem]
    return named_room(path.relative_to(ROOT).with_suffix("").parts)


def named_room(parts: Sequence[str]) -> str:
    """The longest name in the table that these parts of a name begin with."""
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((name for name in names if name in MAY_IMPORT), "jaxpp")


def wrong_imports(path: Path, room: str) -> list[str]:
    allowed = MAY_IMPORT[room] | {room, "_system"}
    problems: list[str] = []
    for line, name in imports(path):
        if name.startswith("."):
            problems.append(f"{shown(path)}:{line}: a relative import")
        first, *parts = name.split(".")
        if first != "jaxpp":
            continue
        target = BASEMENT.get(parts[0], named_room(parts)) if parts else "jaxpp"
        if allowed.isdisjoint({target, target.split(".")[0]}):
            problems.append(f"{shown(path)}:{line}: {room} must not import {target}")
    return problems
