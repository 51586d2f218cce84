"""`jaxpp-opt`: what goes where, exit codes, and the text of every error."""

import contextlib
import io
import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import runline
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxpp._compat import make_context
from jaxpp._versions import UnsupportedJaxError
from jaxpp.hlo_passes import PASSES, PIPELINES
from jaxpp.hlo_passes.base import OwnPassError, Pass, run_passes
from jaxpp.hlo_passes.mlir_pass import MlirPass
from jaxpp.ir.errors import PassError
from jaxpp.tools import opt, opt_run, reproducer

MODULE = """\
module {
  func.func @main(%arg0: tensor<2xf32>) -> tensor<2xf32> {
    %0 = stablehlo.add %arg0, %arg0 : tensor<2xf32>
    return %0 : tensor<2xf32>
  }
}
"""
BAD = "func.func @main() {\n  foo.bar\n}\n"
USAGE = "usage: jaxpp-opt [FILE] [-p PASSES | --pipeline NAME] [options]\njaxpp-opt: error: "


@dataclass(frozen=True)
class Rename(Pass):
    """Renames the functions. All of them.

    Options:
        to: the new name.
        times: how often.
        loud: or not.
    """

    to: str = "a b"
    times: int = 1
    loud: bool = False

    def run(self, module: ir.Module) -> None:
        """Rename."""
        for op in module.body.operations:
            op.attributes["sym_name"] = ir.StringAttr.get(self.to)


@dataclass(frozen=True)
class Misbehave(Pass):
    """Does what passes should not."""

    __module__ = "jaxpp.hlo_passes.misbehave"  # as if it were ours

    how: str = ""

    def run(self, module: ir.Module) -> None:
        """Misbehave."""
        op = module.body.operations[0]
        match self.how:
            case "refuse":
                raise PassError("found one thing, expected another", location=op.location, hint="do something")
            case "refuse-nowhere":
                raise PassError("found nothing")
            case "callback":
                module.operation.walk(self.fail)
            case "break":
                op.attributes["sym_name"] = ir.UnitAttr.get()
            case "mlir":
                ir.Module.parse("oops")
            case "warn":
                op.location.emit_error("just so")
            case "double":
                add = op.regions[0].blocks[0].operations[0]
                add.operands[1] = ir.InsertionPoint(add).block.arguments[0]
                new = ir.Operation.create(
                    "stablehlo.multiply", [add.results[0].type], list(add.operands), ip=ir.InsertionPoint(add)
                )
                add.results[0].replace_all_uses_with(new.results[0])
                add.operation.erase()
            case _:
                raise KeyError("key")

    def fail(self, op: ir.Operation) -> ir.WalkResult:
        """Fails, below a walk in C++."""
        return {}[op.name]


def one_pipeline(schedule: str = "", meshes: int = 0) -> tuple[Pass, ...]:
    """Renames by the schedule."""
    if schedule == "bad":
        raise ValueError("no schedule 'bad'")
    return (Rename(to=f"{schedule}_{meshes}"),)


@mock.patch.dict(PASSES, {"rename": Rename, "misbehave": Misbehave}, clear=True)
@mock.patch.dict(PIPELINES, {"one": one_pipeline, "fixed": lambda: ()}, clear=True)
def run(*argv: object, stdin: str | bytes = MODULE) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a call in this process."""
    return runline.call(opt.main, *argv, stdin=stdin).texts


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reproducers go there."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("reproducers")))


def failure(*argv: object, stdin: str = MODULE, code: int = 1) -> str:
    """The message of a call that fails, and prints nothing on stdout."""
    found, out, err = run(*argv, stdin=stdin)
    assert (found, out) == (code, ""), err
    assert "Traceback" not in err
    return err


def usage_error(*argv: object) -> str:
    message = failure(*argv, code=2)
    assert message.startswith(USAGE)
    return message.removeprefix(USAGE).removesuffix("\n")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "in.mlir"
    path.write_text(MODULE)
    return path


def test_the_result_goes_to_stdout(file: Path) -> None:
    assert run(file) == run("-") == run() == (0, MODULE, "")
    assert run(file, "-p", "rename{to=f}") == (0, MODULE.replace("@main", "@f"), "")
    assert run(file, "-p", 'rename, rename{to="a \\"b\\""}')[1] == MODULE.replace("@main", '@"a \\22b\\22"')
    assert run(file, "--pipeline", "one", "--schedule", "s", "--meshes", 4)[1] == MODULE.replace("@main", "@s_4")
    assert run(file, "--pipeline", "fixed") == run(file)


def test_output_file(file: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.mlir"
    assert run(file, "-o", target) == (0, "", "")
    assert target.read_text() == MODULE
    target.chmod(0o640)
    assert run(file, "-o", target, "-p", "rename{to=f}") == (0, "", "")
    assert target.read_text() == MODULE.replace("@main", "@f")
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    failure(file, "-o", target, "-p", "misbehave{how=refuse}")
    assert target.read_text() == MODULE.replace("@main", "@f")
    assert run(target, "-o", target, "-p", "rename{to=g}")[0] == 0, "in place"
    assert target.read_text() == MODULE.replace("@main", "@g")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.mlir", "out.mlir"]


def test_output_through_a_link_and_to_a_device(file: Path, tmp_path: Path) -> None:
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to("target")
    assert run(file, "-o", tmp_path / "link") == (0, "", "")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == MODULE
    assert run(file, "-o", os.devnull) == (0, "", "")
    assert Path(os.devnull).is_char_device()


def test_output_that_can_not_be_written(file: Path, tmp_path: Path) -> None:
    missing = tmp_path / "missing" / "out"
    assert failure(file, "-o", missing) == f"{missing}: error: cannot write: No such file or directory\n"
    assert failure(file, "-o", tmp_path) == f"{tmp_path}: error: cannot write: Is a directory\n"
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as err:
        assert opt.main([str(file), "--emit-bytecode"]) == 1
    assert err.getvalue() == "<stdout>: error: cannot write: the stream takes no bytes\n"


def test_bytecode_in_and_out(file: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.mlirbc"
    assert run(file, "--emit-bytecode", "-o", target) == (0, "", "")
    assert target.read_bytes().startswith(b"ML\xefR")
    assert run(target) == (0, MODULE, "")
    assert run("-", stdin=target.read_bytes()) == (0, MODULE, "")
    assert runline.call(opt.main, file, "--emit-bytecode") == runline.Result(0, target.read_bytes(), b"")


def test_bad_input(file: Path, tmp_path: Path) -> None:
    def written(data: str | bytes) -> Path:
        file.write_bytes(data if isinstance(data, bytes) else data.encode())
        return file

    assert failure(written(BAD)).startswith(f"{file}:2:3: error: Dialect `foo' not found for custom op 'foo.bar'\n")
    assert failure(stdin=BAD).startswith("<stdin>:2:3: error: Dialect `foo' not found")
    assert failure(written("module {")) == f"{file}:1:7: error: expected operation name in quotes\n"
    assert failure(written("")) == f"{file}: error: the input is empty; expected an MLIR module\n"
    assert failure(stdin=" \n") == "<stdin>: error: the input is empty; expected an MLIR module\n"
    assert failure(tmp_path) == f"{tmp_path}: error: cannot read: Is a directory\n"
    missing = tmp_path / "missing"
    assert failure(missing) == f"{missing}: error: cannot read: No such file or directory\n"
    assert failure("a\0b") == "a\\x00b: error: cannot read: embedded null byte\n"
    assert failure(written(b"module {\n  \xff\xfe")).startswith(
        f"{file}:2:3: error: neither text in UTF-8, nor MLIR bytecode, nor a file of jax.export\n"
    )
    assert failure(written("\0\1\2")).startswith(f"{file}:1:2: error: unexpected character")
    wrong = MODULE.replace("-> tensor<2xf32>", "-> tensor<3xf32>")
    assert failure(written(wrong)).startswith(f"{file}:4:5: error: type of return operand 0 ('tensor<2xf32>') doesn't")


def test_input_of_another_form(file: Path) -> None:
    hlo = "HLO text, expected an MLIR module of StableHLO: write lowered.as_text(), not compiled.as_text()"
    assert failure(stdin="// of XLA\n\nHloModule jit_f, is_scheduled=true") == f"<stdin>:3:1: error: {hlo}\n"
    several = "give each a file, or a line '// -----' between two of them and --split-input-file"
    assert failure(stdin=2 * MODULE) == f"<stdin>:7:1: error: 2 modules in the input, expected one alone: {several}\n"
    assert (
        failure(stdin=f"module {{\n{MODULE}}}")
        == f"<stdin>:2:1: error: 2 modules in the input, expected one alone: {several}\n"
    )
    one = "module { module {} }"
    assert failure(stdin=one) == f"<stdin>:1:10: error: a module inside of the module, expected one alone: {several}\n"
    buffer = io.BytesIO()
    with make_context() as context:
        ir.Module.parse(MODULE, context).operation.write_bytecode(buffer)
        artifact = stablehlo.serialize_portable_artifact(
            ir.Module.parse(MODULE, context), stablehlo.get_minimum_version()
        )
    for data in (buffer.getvalue(), artifact):
        file.write_bytes(data)
        assert run(file)[:2] == (0, MODULE)
    with make_context() as context:
        vhlo = str(ir.Module.parse(artifact, context))
    expected = "<stdin>: error: a module of VHLO, expected StableHLO: give the portable artifact as it is\n"
    assert failure(stdin=vhlo) == expected


def test_input_that_would_end_the_process(file: Path) -> None:
    deep = "module {" * 20000 + "}" * 20000
    assert failure(stdin=deep) == "<stdin>: error: brackets are nested 20000 deep; more than 500 is not supported\n"
    assert run(stdin="module attributes {deep.er = " + "[" * 400 + "]" * 400 + "} {}")[0] == 0
    assert run(stdin=MODULE + "// " + "->(" * 400)[0] == 0
    name = "the input holds a name that is not UTF-8"
    assert failure(stdin='func.func @"a\\80"() -> i32 { return }') == f"<stdin>: error: {name}\n"
    assert failure(stdin='module {\n func.func @"a\\80"() { return }\n}') == f"<stdin>:2:2: error: {name}\n"
    file.write_bytes(b"ML\xefR" + bytes(range(256)))
    assert failure(file).startswith(f"{file}: error: ")


def test_what_a_pass_says(file: Path) -> None:
    message = failure(file, "-p", "misbehave{how=refuse}")
    assert message == f"{file}:2:3: error: found one thing, expected another\n  do something\n"
    assert failure("-p", "misbehave{how=refuse}").startswith("<stdin>:2:3: error: found one")
    assert failure(file, "-p", "misbehave{how=refuse-nowhere}") == f"{file}: error: found nothing\n"
    located = MODULE.replace("    return %0 : tensor<2xf32>\n  }", "    return %0 : tensor<2xf32>\n  } LOCATION")
    located = located.replace("LOCATION", 'loc("jit(f)"("train.py":7:9))')
    assert failure("-p", "misbehave{how=refuse}", stdin=located).startswith("train.py:7:9: error: found one thing")


def test_a_pass_with_a_bug(file: Path) -> None:
    message, note, _ = failure(file, "-p", "rename,misbehave", code=70).split("\n")
    assert message == f"{file}: error: internal error in pass 'misbehave': KeyError: 'key' (--debug shows where)"
    found = re.fullmatch(rf"{file}: note: (\S+) reproduces it: jaxpp-opt \1 --run-reproducer", note)
    assert found
    with Path(found[1]).open(encoding="utf-8") as written:
        assert re.match(r"// Made by jaxpp [\d.]+, jax [\d.]+, jaxlib [\d.]+; ", written.readline())
        assert 'func.func @"a b"' in written.read(), "the module before the pass"
    again = failure(found[1], "--run-reproducer", "--reproducer", "/dev/null", code=70)
    assert again.startswith(f"{found[1]}: error: internal error in pass 'misbehave': KeyError: 'key'")
    _, out, err = run(file, "-p", "misbehave", "--debug")
    assert not out
    assert err.startswith(message)
    assert "Traceback" in err
    message = failure(file, "-p", "misbehave{how=break}", code=70)
    assert message.startswith(f"{file}:2:3: error: 'func.func' op requires attribute 'sym_name'\n")
    assert f"{file}: error: internal error: pass 'misbehave' left an invalid module\n" in message
    assert run(file, "-p", "misbehave{how=break}", "--no-verify-each")[0] == 0
    message = failure(file, "-p", "misbehave{how=mlir}", code=70)
    assert "custom op 'oops' is unknown" in message
    assert "internal error in pass 'misbehave': MLIRError" in message


@pytest.mark.parametrize(
    ("how", "line", "what"),
    [
        ("", 'raise KeyError("key")', "KeyError: 'key'"),
        ("mlir", 'ir.Module.parse("oops")', "MLIRError: "),
        ("callback", "return {}[op.name]", "KeyError: 'stablehlo.add'"),
    ],
)
def test_an_error_in_a_pass_of_the_user(
    how: str, line: str, what: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Misbehave, "__module__", __name__)
    number = 1 + [line in each for each in Path(__file__).read_text(encoding="utf-8").splitlines()].index(True)
    *_, message, note = failure(file, "-p", f"rename,misbehave{{how={how or 'raise'}}}").splitlines()
    assert message.startswith(f"{__file__}:{number}: error: pass 'misbehave' raised {what}"), message
    assert message.endswith(" (--debug shows the traceback)")
    found = re.fullmatch(rf"{file}: note: (\S+) reproduces it: jaxpp-opt \1 --run-reproducer", note)
    assert found
    assert failure(found[1], "--run-reproducer").splitlines()[-2] == message
    assert "Traceback" in run(file, "-p", "misbehave", "--debug")[2]
    with make_context(), pytest.raises(OwnPassError, match=rf"^{__file__}:{number}: error: pass") as caught:
        run_passes(ir.Module.parse(MODULE), [Misbehave(how)])
    assert caught.value.__cause__ is not None


def test_a_pass_of_the_user_breaks_the_module(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Misbehave, "__module__", __name__)
    first, message, note = failure(file, "-p", "misbehave{how=break}").splitlines()
    assert first == f"{file}:2:3: error: 'func.func' op requires attribute 'sym_name'"
    assert message == f"{file}: error: pass 'misbehave' made an invalid module"
    assert " reproduces it: " in note
    assert run(file, "-p", "misbehave{how=break}", "--no-verify-each")[0] == 0


def test_a_jax_that_it_does_not_work_with(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> Any:
        raise UnsupportedJaxError("jaxpp does not work with jax 9.0: ...")

    monkeypatch.setattr(Misbehave, "run", missing)
    expected = f"{file}: error: jaxpp does not work with jax 9.0: ...\n"
    assert failure(file, "-p", "misbehave", code=70) == expected
    monkeypatch.setattr(opt_run, "make_context", missing)
    assert failure(file, code=70) == expected


def test_usage_errors(file: Path) -> None:
    assert usage_error("-p", "renam") == "unknown pass 'renam'; did you mean 'rename'?"
    assert usage_error("-p", "xyz") == "unknown pass 'xyz'; known: rename, misbehave"
    assert usage_error("--print-after", "renames") == "unknown pass 'renames'; did you mean 'rename'?"
    assert usage_error("--pass-doc", "renames") == "unknown pass 'renames'; did you mean 'rename'?"
    assert usage_error("--pipeline", "two") == "unknown pipeline 'two'; known: one, fixed"
    assert usage_error("--validate", "--seed", -1) == "argument --seed: expected a number from 0 on, found '-1'"
    trips = usage_error("--validate", "--validate-trips", 0)
    assert trips == "argument --validate-trips: expected a number from 1 on, found '0'"
    assert usage_error("--pipeline", "fixed", "--meshes", 2) == "pipeline 'fixed' takes no --meshes"
    assert usage_error("--pipeline", "one", "--schedule", "bad") == "pipeline 'one': no schedule 'bad'"
    assert usage_error("--pipeline", "one", "-p", "rename") == "-p and --pipeline exclude each other"
    found = usage_error("--pipeline", "fixed", "--gather-weights", "step")
    assert found == "pipeline 'fixed' takes no --gather-weights"
    own = "a pass takes options as name{option=value}"
    assert usage_error("--meshes", 2) == f"--meshes is for --pipeline; {own}"
    assert usage_error("-p", "rename", "--transport", "pair") == f"--transport is for --pipeline; {own}"
    assert usage_error("--pipeline", "one", "--meshes", "x") == "argument --meshes: invalid int value: 'x'"
    assert usage_error("--emit-bytecode", "--split-input-file").startswith("--emit-bytecode writes one module")
    assert usage_error("--nonsense") == "unknown option --nonsense"
    assert usage_error(file, file) == f"unrecognized arguments: {file}"
    assert usage_error("-p") == "argument -p/--passes/--pass-pipeline: expected one argument"


def test_help_and_lists() -> None:
    code, out, err = run("--help")
    assert (code, err) == (0, "")
    assert "--split-input-file" in out
    assert "70 for a bug in a pass" in " ".join(out.split())
    assert run("--list-passes", stdin="") == (
        0,
        "rename\n    Renames the functions.\n    {to=<str>}  default \"a b\"\n    {times=<int>}  default 1\n"
        "    {loud=<bool>}  default false\nmisbehave\n    Does what passes should not.\n    {how=<str>}  default \"\"\n"
        "--pipeline one\n    Renames by the schedule.\n--pipeline fixed\n    \n",
        "",
    )  # fmt: skip
    assert run("--pass-doc", "rename")[1].startswith("rename\n\nRenames the functions. All of them.\n\nOptions:")


def test_print_after(file: Path) -> None:
    renamed = f"// -----// after rename //----- //\n{MODULE.replace('@main', '@f')}\n"
    _, out, err = run(file, "-p", "rename{to=f},misbehave{how=double}", "--print-after", "rename")
    assert (err, "multiply" in out) == (renamed, True)
    code, out, err = run(file, "-p", "rename{to=f},misbehave{how=refuse}", "--print-after-all")
    assert (code, out) == (1, "")
    assert err == renamed + f"{file}:2:3: error: found one thing, expected another\n  do something\n"


def test_time_passes(file: Path) -> None:
    code, out, err = run(file, "-p", "rename,rename", "--time-passes")
    assert (code, out) == run(file, "-p", "rename")[:2]
    lines = [line.split() for line in err.splitlines()]
    assert [line[0] for line in lines] == ["pass", "rename", "rename", "total"]
    assert lines[-1][2:] == ["ms", "100.0", "%"]


def test_source_locations(file: Path) -> None:
    assert f'loc("{file}":2:3)' in run(file, "--mlir-print-debuginfo")[1]


def test_split_input(file: Path) -> None:
    file.write_text(f"// a comment\n// -----\n{MODULE}// -----\n{MODULE}")
    code, out, err = run(file, "--split-input-file", "-p", "rename{to=f}")
    renamed = MODULE.replace("@main", "@f")
    assert (code, out, err) == (0, f"module {{\n}}\n// -----\n{renamed}// -----\n{renamed}", "")
    file.write_text(f"{MODULE}// -----\n{BAD}// ----- \n{MODULE}// -----\n\n{BAD}")
    err = failure(file, "--split-input-file")
    assert [line.split(": ")[0] for line in err.splitlines() if ": error: " in line] == [f"{file}:9:3", f"{file}:21:3"]


def test_diagnostics_of_a_pass_go_to_stderr(file: Path) -> None:
    code, out, err = run(file, "-p", "misbehave{how=warn}")
    assert (code, out) == (0, MODULE)
    assert err == f"{file}:2:3: error: just so\n"


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("--recompute", "2", "--recompute is '2', expected"),
        ("--offload", "all", "--offload is 'all', expected numbers of stages"),
        (
            "--memory-limit",
            "0",
            "--memory-limit is '0', expected bytes: a number above 0, such as 4096 or 70GiB, ",
        ),
        ("--host-memory-limit", "1,0", "--host-memory-limit is '1 0', expected bytes: a number above 0, such as"),
        ("--memory-limit", "70GiB,7 lots", "--memory-limit is '70GiB 7 lots', expected bytes: a number above 0"),
        ("--cuts", "a", "--cuts: expected the layers of each stage, such as '5,5,4,2', found 'a'"),
    ],
)
def test_values_of_the_real_pipeline(file: Path, flag: str, value: str, message: str) -> None:
    """Messages name the flag, not the option of a pass that nobody typed."""
    code, _, err = runline.call(opt.main, file, "--pipeline", "mpmd", flag, value).texts
    assert code == 2
    assert f"error: pipeline 'mpmd': {message}" in err


def test_validate(file: Path) -> None:
    code, out, err = run(file, "--validate", "-p", "rename{to=main}")
    assert (code, out) == (0, MODULE)
    assert err.startswith("validated: 1 results agree after each of 1 passes; largest difference 0.0e+00")
    message = failure(file, "--validate", "--seed", 3, "-p", "rename{to=main},misbehave{how=double}")
    expected = f"{file}: error: pass 'misbehave' changed what the module computes: result 0 differs by "
    assert message.startswith(expected), message
    message = failure("--validate", "-p", "rename", stdin="module {}")
    assert message.endswith("it has neither a public function @main nor mesh functions\n")


def command(*argv: object, **options: Any) -> "subprocess.CompletedProcess[bytes]":
    line = [sys.executable, "-c", "from jaxpp.tools.opt import cli; cli()", *map(str, argv)]
    return subprocess.run(line, capture_output=True, timeout=120, check=False, **options)


def test_the_command(file: Path) -> None:
    assert command(file).stdout.decode() == command(input=MODULE.encode()).stdout.decode() == MODULE
    bytecode = command(file, "--emit-bytecode").stdout
    assert bytecode.startswith(b"ML\xefR")
    assert command("-", input=bytecode).stdout.decode() == MODULE
    done = command("-", input=bytecode[: len(bytecode) // 2])
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(b"<stdin>: error: ")
    assert command("-p", "nonsense").returncode == 2


def test_the_reader_may_go_away(file: Path) -> None:
    line = f'"{sys.executable}" -c "from jaxpp.tools.opt import cli; cli()" {file} --mlir-print-debuginfo | true'
    done = subprocess.run(line, shell=True, capture_output=True, timeout=120, check=False)
    assert done.stderr == b""


def test_streams_that_are_closed(file: Path) -> None:
    """Messages do not go to stdout instead, and stdin is empty."""
    line = f'"{sys.executable}" -c "from jaxpp.tools.opt import cli; cli()" '
    done = subprocess.run(f"{line} {file} --time-passes 2>&-", shell=True, capture_output=True, timeout=120, check=True)
    assert done.stdout.decode() == MODULE
    done = subprocess.run(f"{line} - <&-", shell=True, capture_output=True, timeout=120, check=False)
    assert done.stderr.decode() == "<stdin>: error: the input is empty; expected an MLIR module\n"


def test_a_step_needs_neither_jax_nor_scipy() -> None:
    """To import them takes as long as all passes together."""
    gpt = Path(__file__).parents[2] / "lit" / "Inputs" / "gpt.mlir"
    code = (
        "import sys; from jaxpp.tools import opt; "
        f"assert opt.main([{str(gpt)!r}, '--pipeline', 'mpmd', '-o', {os.devnull!r}]) == 0; "
        "print({'jax', 'scipy'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "set()\n"


def unreadable(path: Path) -> Callable[[], None]:
    path.chmod(0)
    return lambda: path.chmod(0o600)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_permission(file: Path) -> None:
    restore = unreadable(file)
    assert failure(file) == f"{file}: error: cannot read: Permission denied\n"
    restore()


def test_help_imports_neither_mlir_nor_numpy() -> None:
    code = """
import sys
from jaxpp.tools import opt
try:
    opt.main(["--help"])
except SystemExit:
    print(sorted({"jax", "jaxlib", "numpy", "jaxpp.hlo_passes"} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_passes_of_mlir_stand_among_ours(file: Path) -> None:
    text = (
        "builtin.module(rename{to=x}, canonicalize{top-down=false},func.func(cse, canonicalize) ,"
        "chlo-legalize-to-stablehlo)"
    )
    code, out, err = run(file, "--pass-pipeline", text)
    assert (code, err) == (0, "")
    assert "func.func @x(" in out
    printed = run(file, "--pass-pipeline", text, "--print-pipeline")[1]
    assert printed == (
        "builtin.module(rename{to=x},canonicalize{top-down=false},func.func(cse, canonicalize),"
        "chlo-legalize-to-stablehlo)\n"
    )
    assert run(file, "-p", printed, "--print-pipeline")[1] == printed
    assert usage_error("-p", "func.func(ces)").startswith("unknown pass 'ces'; known: rename")
    message = usage_error("-p", "canonicalize{down=1}")
    assert message.startswith("pass 'canonicalize' of MLIR: <Pass-Options-Parser>: no such option down")
    assert usage_error("-p", "builtin.module(cse").startswith("bad pipeline: expected ')', found the end")
    assert usage_error("-p", "builtin.module(cse))").startswith("bad pipeline: expected the end, found ')'")


def test_a_part_of_a_pipeline(file: Path) -> None:
    passes = "rename{to=a},rename{to=b},cse,rename{to=c}"

    def chosen(*options: str) -> str:
        return run(file, "-p", passes, *options, "--print-pipeline")[1].strip()

    assert chosen("--start-after", "cse") == "builtin.module(rename{to=c})"
    assert chosen("--stop-after", "cse") == "builtin.module(rename{to=a},rename{to=b},cse)"
    assert chosen("--start-after", "rename", "--stop-after", "cse") == "builtin.module(rename{to=b},cse)"
    assert chosen("--disable", "rename") == "builtin.module(cse)"
    assert chosen("--disable", "rename", "--disable", "cse") == "builtin.module()"
    assert usage_error("-p", passes, "--disable", "csee") == "--disable: unknown pass 'csee'; did you mean 'cse'?"
    expected = "--start-after cse is after --stop-after rename"
    assert usage_error("-p", "rename,cse", "--start-after", "cse", "--stop-after", "rename") == expected


def test_what_a_pass_changes(file: Path) -> None:
    _, _, err = run(file, "-p", "rename{to=x},cse", "--mlir-print-ir-after-change", "-o", os.devnull)
    first, second = err.split("// -----// after ")[1:]
    assert first.startswith("rename //----- //\n@@ -1,5 +1,5 @@\n")
    assert "-  func.func @main(%arg0" in first
    assert "+  func.func @x(%arg0" in first
    assert second == "cse //----- //\n(no change)\n"
    _, _, err = run(file, "-p", "rename{to=x},cse", "--mlir-print-ir-before=cse", "-o", os.devnull)
    assert err.startswith("// -----// before cse //----- //\nmodule {\n  func.func @x(")
    assert err.count("// -----//") == 1


def test_large_constants_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "large.mlir"
    path.write_text(
        "func.func @main() -> tensor<4xi32> {\n  %0 = stablehlo.constant dense<[1,2,3,4]> : tensor<4xi32>\n"
        "  return %0 : tensor<4xi32>\n}\n",
        encoding="utf-8",
    )
    assert "__elided__" in run(path, "--mlir-elide-elementsattrs-if-larger", 3)[1]
    assert "[1, 2, 3, 4]" in run(path, "--mlir-elide-elementsattrs-if-larger", 4)[1]


def test_input_that_is_too_large(file: Path) -> None:
    size = len(MODULE)
    expected = f"error: {size} bytes, more than the limit of --max-input, {size - 1}\n"
    assert failure(file, "--max-input", size - 1) == f"{file}: {expected}"
    assert failure("-", "--max-input", size - 1) == f"<stdin>: {expected}"
    assert run(file, "--max-input", size)[0] == 0


def test_versions_and_dialects(file: Path) -> None:
    assert re.fullmatch(r"jaxpp [\d.]+, jax [\d.]+\S*, jaxlib [\d.]+\S*\n", run("--version")[1])
    assert run(file, "--show-dialects")[1].split() == ["2", "func", "1", "stablehlo"]


def test_a_module_of_vhlo_has_no_statistics(file: Path) -> None:
    message = failure(file, "-p", "stablehlo-legalize-to-vhlo", "--op-stats")
    expected = "a module of VHLO: its operations can't be counted\n  leave out the pass that makes it\n"
    assert message == f"{file}: error: {expected}"


def test_an_unknown_option_names_the_nearest(file: Path) -> None:
    assert usage_error(file, "--print-after-al") == "unknown option --print-after-al; did you mean --print-after-all?"
    assert usage_error(file, "--", "-p", "cse") == "-p stands behind --, which ends the options"
    assert usage_error(file, "--zzzzzzzzzz=3") == "unknown option --zzzzzzzzzz"


def test_a_crash_of_a_pass_is_a_message(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def abort(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGABRT)

    monkeypatch.setattr(MlirPass, "run", abort)
    expected = f"{file}: error: pass 'cse' crashes on this module: SIGABRT\n"
    assert failure(file, "-p", "rename,cse") == expected
    monkeypatch.setattr(Misbehave, "run", abort)
    message = failure(file, "-p", "rename,misbehave", "--isolate", code=70)
    assert message.startswith(expected.replace("cse", "misbehave"))
    assert "reproduces it: jaxpp-opt " in message


DIAGNOSTICS = """\
// expected-error@below {{found 1 mesh}}
func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
  return %x : tensor<2xf32>
}
"""


def test_expected_messages(tmp_path: Path) -> None:
    def compared(text: str, *options: str) -> tuple[int, str, str]:
        path = tmp_path / "a.mlir"
        path.write_text(text, encoding="utf-8")
        code, out, err = run(path, "--verify-diagnostics", *options)
        return code, out, err.replace(f"{path}", "a.mlir")

    refused = ["-p", "misbehave{how=refuse}"]
    good = DIAGNOSTICS.replace("found 1 mesh", "found one thing")
    assert compared(good, *refused) == (0, "", "")
    assert compared(good.replace("@below", "@+1"), *refused) == (0, "", "")
    assert compared(good.replace("{{found one", "{{expected {{[a-z]+}}").replace("error", "error-re"), *refused)[0] == 1
    regex = good.replace("expected-error@below {{found one thing}}", "expected-error-re@below {{found {{.*}}, exp}}")
    assert compared(regex, *refused) == (0, "", "")
    code, out, err = compared(DIAGNOSTICS, *refused)
    assert (code, out) == (1, "")
    assert err == (
        "a.mlir:2:1: error: found one thing, expected another\n  do something\n"
        "  no comment expects it: // expected-error {{...}}\n"
        "a.mlir:1:1: error: expected error was not reported: found 1 mesh\n"
    )
    assert compared(good)[2] == "a.mlir:1:1: error: expected error was not reported: found one thing\n"
    assert (
        compared("// expected-error@unknown {{found nothing}}\n" + MODULE, "-p", "misbehave{how=refuse-nowhere}")[0]
        == 0
    )
    assert compared(MODULE) == (0, "", "")


@pytest.mark.parametrize(
    ("comment", "message"),
    [
        ("expected-error@1 {{x}}", "not understood: expected-error@1 {{x}}"),
        ("expected-error 9999999 {{x}}", "not understood: expected-error 9999999 {{x}}"),
        ("expected-error-re {{a{{(}}b}}", "not understood: expected-error-re {{a{{(}}b}}"),
        ("expected-error {{x}} expected-warning {{y}}", "expected error was not reported: x"),
    ],
)
def test_comments_that_expect_no_message(comment: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.mlir"
    path.write_text(f"// {comment}\n{MODULE}", encoding="utf-8")
    code, _, err = run(path, "--verify-diagnostics")
    assert (code, err.splitlines()[0]) == (1, f"{path}:1:1: error: {message}")
    assert len(err.splitlines()) == 1 + ("warning" in comment)


def test_a_reproducer_of_a_module_with_resources(tmp_path: Path) -> None:
    path, again = tmp_path / "a.mlir", tmp_path / "again.mlir"
    path.write_text(
        "func.func @main() -> tensor<2xf32> {\n"
        "  %0 = stablehlo.constant dense_resource<some> : tensor<2xf32>\n  return %0 : tensor<2xf32>\n}\n"
        '{-# dialect_resources: { builtin: { some: "0x040000000000803F00000040" } } #-}\n',
        encoding="utf-8",
    )
    assert failure(path, "-p", 'misbehave{how=refuse},rename{to="a\nb"}', "--reproducer", again)
    found = reproducer.read(again.read_text(encoding="utf-8"))
    assert found
    assert "0x040000000000803F00000040" in found[0]
    assert found[1] == 'builtin.module(misbehave{how=refuse},rename{to="a\nb"})'


def test_what_is_no_reproducer(file: Path) -> None:
    expected = f"{file}: error: no reproducer: expected a resource mlir_reproducer with a pipeline\n"
    assert failure(file, "--run-reproducer") == expected
    assert usage_error(file, "--run-reproducer", "-p", "cse").startswith(
        "--run-reproducer takes the passes from the file"
    )


def test_a_reproducer_in_a_file_of_ones_own(file: Path, tmp_path: Path) -> None:
    path = tmp_path / "again.mlir"
    message = failure(file, "-p", "rename{to=y},misbehave{how=refuse}", "--reproducer", path)
    assert message.endswith(f"{file}: note: {path} reproduces it: jaxpp-opt {path} --run-reproducer\n")
    assert failure(path, "--run-reproducer").replace(str(path), str(file)) == message.partition(f"{file}: note")[0]
    assert 'pipeline: "builtin.module(misbehave{how=refuse})"' in path.read_text(encoding="utf-8")
