"""`jaxpp-execute`: runs modules and programs, and compares their results."""

import json
from pathlib import Path

import numpy as np
import pytest
import runline

from jaxpp.tools import arrays, execute, opt

BASIC = Path(__file__).parents[2] / "lit" / "execute" / "basic.mlir"


def run(*argv: object) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a call in this process."""
    return runline.call(execute.main, *argv, stdin="").texts


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("program") / "program.mlir"
    pipeline = ("--pipeline", "mpmd", "--schedule", "1f1b", "--meshes", 2)
    assert runline.call(opt.main, BASIC, *pipeline, "-o", path, stdin="").texts[0] == 0
    return path


def test_results_of_given_arguments_are_saved(program: Path, tmp_path: Path) -> None:
    inputs, saved = tmp_path / "in.npz", tmp_path / "out.npz"
    x = np.array([0.5, 1.0], np.float32)
    np.savez(inputs, arg0=x)
    code, out, _ = run(program, "--inputs", inputs, "--save", saved, "--print")
    assert code == 0
    expected = x + 3 * np.cos(np.sin(x))
    with np.load(saved) as found:
        np.testing.assert_allclose(found["result0"], expected, rtol=1e-6)
    assert out.splitlines()[0] == f"result 0: float32[2] mean {expected.mean():.6g}, at most {expected.max():.6g}"
    with np.load(saved) as found, np.printoptions(threshold=9):
        assert out.splitlines()[1] == np.array2string(found["result0"])


def test_a_wrong_program_is_found(program: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.mlir"
    wrong.write_text(
        program.read_text(encoding="utf-8").replace("stablehlo.cosine", "stablehlo.sine"), encoding="utf-8"
    )
    code, out, err = run(wrong, "--reference", BASIC)
    assert code == 1
    assert f"{wrong}: error: result 0 differs by " in err
    assert "0 of 1 results agree with basic.mlir" in out
    assert run(program, "--reference", BASIC, "--tolerance", "1e-5")[0] == 0


def test_a_trace(program: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    assert run(program, "--trace", path)[0] == 0
    names = {event.get("name") for event in json.loads(path.read_text(encoding="utf-8"))["traceEvents"]}
    assert {"forward 0, 0", "forward 1, 2"} <= names
    code, _, err = run(BASIC, "--trace", path)
    assert (code, err.splitlines()[-1]) == (
        1,
        "--trace: error: a module with @main has no tasks to trace, expected a program",
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"arg0": np.zeros(3, np.float32)}, "arg0: expected float32[2], found float32[3]"),
        ({"arg0": np.zeros(2)}, "arg0: expected float32[2], found float64[2]"),
        ({"weights": np.zeros(2)}, "'weights' is no argument, expected arg0 to arg1"),
    ],
)
def test_arguments_that_do_not_fit(given: dict[str, np.ndarray], message: str, tmp_path: Path) -> None:
    inputs = tmp_path / "in.npz"
    np.savez(inputs, **given)  # pyright: ignore[reportArgumentType]  # numpy's stub takes the names for options
    assert run(BASIC, "--inputs", inputs) == (1, "", f"{inputs}: error: {message}\n")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("-> tensor<2xf32>", "-> (tensor<2xf32>, tensor<2xf32>)"), "result 1"),
        (("%n: tensor<4xf32>", "%n: tensor<5xf32>"), "changed argument 1 from tensor<4xf32> to tensor<5xf32>"),
    ],
)
def test_a_reference_with_another_signature(change: tuple[str, str], message: str, tmp_path: Path) -> None:
    other = tmp_path / "other.mlir"
    text = BASIC.read_text(encoding="utf-8").replace(*change, 1)
    if "result" in message:
        text = text.replace("  return %0#1 : tensor<2xf32>", "  return %0#1, %0#1 : tensor<2xf32>, tensor<2xf32>")
    other.write_text(text, encoding="utf-8")
    code, out, err = run(other, "--reference", BASIC)
    assert (code, out) == (1, "")
    assert message in err


def test_a_module_that_calls_what_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "external.mlir"
    path.write_text(
        "func.func private @ext(tensor<2xf32>) -> tensor<2xf32>\n"
        "func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {\n"
        "  %0 = call @ext(%x) : (tensor<2xf32>) -> tensor<2xf32>\n  return %0 : tensor<2xf32>\n}\n",
        encoding="utf-8",
    )
    assert run(path) == (1, "", f"{path}:1:1: error: @ext has no body in this module\n")


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_bfloat16_goes_in_and_out(suffix: str, tmp_path: Path) -> None:
    path, saved = tmp_path / "half.mlir", tmp_path / f"out.{suffix}"
    path.write_text(
        "func.func @main(%x: tensor<2xbf16>) -> tensor<2xbf16> {\n  return %x : tensor<2xbf16>\n}\n", encoding="utf-8"
    )
    code, out, _ = run(path, "--save", saved)
    assert code == 0
    assert "result 0: bfloat16[2] mean " in out
    found = arrays.read_arrays(str(saved))
    arrays.write_arrays(str(saved), {"arg0": found["result0"]})
    assert run(path, "--inputs", saved, "--seed", 1)[1] == out


def test_usage() -> None:
    assert "--tolerance is for --reference" in run(BASIC, "--tolerance", "1e-3")[2]
    assert "expected a number from 0 on" in run(BASIC, "--reference", BASIC, "--tolerance", "nan")[2]
    assert "can't both be stdin" in run("-", "--reference", "-")[2]


def test_a_trace_that_can_not_be_written(program: Path) -> None:
    assert run(program, "--trace", "/nowhere/x.json")[2].endswith(
        "x.json: error: cannot write: No such file or directory\n"
    )


def test_files_that_can_not_be_read(tmp_path: Path) -> None:
    text = tmp_path / "text.npz"
    text.write_text("no array", encoding="utf-8")
    assert run(BASIC, "--inputs", text)[2].startswith(f"{text}: error: cannot read arrays of numpy.savez: ")
    missing = tmp_path / "missing.mlir"
    assert run(missing) == (1, "", f"{missing}: error: cannot read: No such file or directory\n")
    assert run(BASIC, "--reference", missing)[2] == f"{missing}: error: cannot read: No such file or directory\n"
