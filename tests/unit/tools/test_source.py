"""Whatever the bytes of a module, the tool answers, and its process lives on."""

import io
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest
import runline
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxlib.mlir import ir

from jaxpp._compat import make_context
from jaxpp.tools import opt, source
from jaxpp.tools.streams import InputError

SEED = """\
module @step attributes {mhlo.num_partitions = 2 : i32, jaxpp.meshes = 1 : i64} {
  sdy.mesh @mesh = <["mpmd"=1, "data"=2]>
  func.func private @forward_0(%w: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"data"}]>},
                               %i: tensor<i32>)
      -> tensor<4x4xf32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %d = stablehlo.dot_general %w, %w, contracting_dims = [1] x [0]
        : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %z = stablehlo.constant dense<[[1.0], [2.0], [3.0], [4.0]]> : tensor<4x1xf32>
    %c = stablehlo.constant dense<8> : tensor<i32>
    %b = stablehlo.broadcast_in_dim %z, dims = [0, 1] : (tensor<4x1xf32>) -> tensor<4x4xf32>
    %q:2 = stablehlo.while(%k = %i, %v = %b) : tensor<i32>, tensor<4x4xf32>
      attributes {jaxpp.microbatch_loop = {length = 8 : i64, schedule = "1f1b"}}
      cond {
        %lt = stablehlo.compare LT, %k, %c, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %lt : tensor<i1>
      } do {
        %o = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = "x"}} %v
          : tensor<4x4xf32>
        stablehlo.return %k, %o : tensor<i32>, tensor<4x4xf32>
      }
    return %q#1 : tensor<4x4xf32>
  }
  func.func public @main(%w: tensor<4x4xf32>, %i: tensor<i32>) -> (tensor<4x4xf32> {jax.result_info = "w"}) {
    %a = call @forward_0(%w, %i) {jaxpp.last_use = array<i64: 0>} : (tensor<4x4xf32>, tensor<i32>) -> tensor<4x4xf32>
    return %a : tensor<4x4xf32>
  }
}
"""
WORDS = [
    b"tensor<",
    b"f32",
    b"-1",
    b"9" * 20,
    b"@mesh",
    b"{",
    b"}",
    b"(",
    b"%a",
    b"?",
    b'"',
    b"\\ff",
    b"array<i64: ",
    b"loc(",
]
DAMAGED = "MLIR bytecode inside of a file of another form, or a damaged file of jax.export"
PIPELINES = ["inline-calls", "inline-calls,find-microbatch-loop{schedule=1f1b meshes=1}", "propagate-shardings", ""]


def mutated(data: bytes, generator: random.Random, start: int) -> bytes:
    """`data` with a few bytes changed, lost, added or repeated, from `start` on."""
    result = bytearray(data)
    for _ in range(generator.choice((1, 1, 2, 5, 20))):
        at = generator.randrange(start, len(result))
        match generator.randrange(5):
            case 0:
                result[at] = generator.randrange(256) if start else generator.randrange(32, 127)
            case 1:
                del result[at : at + generator.randrange(1, 8)]
            case 2:
                result[at:at] = generator.choice(WORDS)
            case 3:
                other = generator.randrange(start, len(result))
                result[at:at] = result[other : other + generator.randrange(1, 40)]
            case _:
                other = generator.randrange(start, len(result))
                result[at : at + 4] = result[other : other + 4]
    return bytes(result)


def answers(data: bytes, *argv: str) -> int:
    """The exit code for this input: a result or an error, and no bug of a pass."""
    code, out, err = runline.call(opt.main, "-", *argv, stdin=data).texts
    assert code in (0, 1), err
    assert (code == 0) == bool(out), (code, err)
    assert code == 0 or ": error: " in err, err
    return code


def batch(seed: int, count: int) -> None:
    """Feed mutated modules to the tool; run in a process of its own."""
    generator = random.Random(seed)
    for number in range(count):
        data = mutated(SEED.encode(), generator, 0)
        Path(f"input_{seed}.mlir").write_bytes(data)  # the last one, should the process die
        answers(data, "-p", PIPELINES[number % len(PIPELINES)])


@pytest.mark.parametrize("seed", [1, 2])
def test_mutated_modules(seed: int, tmp_path: Path) -> None:
    tests = str(Path(__file__).parents[2])
    code = f"import runpy, sys; sys.path.append({tests!r}); runpy.run_path({__file__!r})['batch']({seed}, 300)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False
    )
    last = (tmp_path / f"input_{seed}.mlir").read_text(errors="replace")
    assert done.returncode == 0, f"{done.stderr[-2000:]}\n{last}"


def test_mutated_bytecode() -> None:
    buffer = io.BytesIO()
    with make_context() as context:
        ir.Module.parse(SEED, context).operation.write_bytecode(buffer)
    generator = random.Random(0)
    for _ in range(12):
        answers(mutated(buffer.getvalue(), generator, 4))


@settings(deadline=None, max_examples=50)
@given(st.binary(min_size=1, max_size=400))
def test_random_bytes(data: bytes) -> None:
    answers(data)
    if not data.startswith(source.BYTECODE_MAGIC):
        assert answers(b"\xff" + data) == 1


def test_parts_keep_their_line_numbers() -> None:
    text = b"a\n// -----\nb\n// -----\t\r\nc // -----\nd"
    parts = list(source.split(text))
    assert [part.strip().splitlines()[-1:] for part in parts] == [[b"a"], [b"b"], [b"d"]]
    lines = text.splitlines()
    for part in parts:
        for number, line in enumerate(part.splitlines()):
            assert line in (b"", lines[number])


def test_bytecode_whose_reading_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    endless = "from jaxpp.tools import source; source.make_context = lambda: [0 for _ in iter(int, 1)]"
    child = subprocess.run([sys.executable, "-c", f"{endless}; source.try_bytecode(b'', 1)"], check=False)
    assert child.returncode == -signal.SIGXCPU

    def run(*_: object, **__: object) -> subprocess.CompletedProcess[bytes]:
        return child

    monkeypatch.setattr(subprocess, "run", run)
    with make_context() as context, pytest.raises(InputError, match=r"^x: .* MLIR's reader does not come to an end$"):
        source.parse(b"ML\xefR", "x", context, whole=True)


class State(NamedTuple):
    """A container of the user, which only the process that exports knows."""

    w: jax.Array


jax.export.register_namedtuple_serialization(State, serialized_name="test_source.State")


@pytest.fixture(scope="module")
def exported() -> jax.export.Exported:
    def step(state: State, x: jax.Array) -> jax.Array:
        return jnp.sin(x @ state.w)

    return jax.export.export(jax.jit(step))(State(jnp.ones((4, 4))), jnp.ones((2, 4)))


def test_a_file_of_jax_export(exported: jax.export.Exported, tmp_path: Path) -> None:
    path = tmp_path / "step.export"
    path.write_bytes(exported.serialize())
    with make_context() as context:
        expected = str(ir.Module.parse(exported.mlir_module(), context))
    command = [sys.executable, "-m", "jaxpp.tools.opt", path]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == expected


def test_damaged_files_of_jax_export(exported: jax.export.Exported) -> None:
    data, generator = exported.serialize(), random.Random(0)
    start = data.index(source.BYTECODE_MAGIC)
    found: set[str] = set()
    for _ in range(300):
        damaged = bytearray(data)
        for _ in range(generator.choice((1, 3, 10))):
            damaged[generator.randrange(start)] = generator.randrange(256)
        try:
            found.add(str(source.bytecode_of_exported(bytes(damaged), "x")[:4]))
        except InputError as error:
            found.add(str(error))
    assert found == {str(source.BYTECODE_MAGIC), f"x: error: {DAMAGED}"}
    inside = bytearray(data)
    inside[start + 40 : start + 60] = bytes(20)
    for damaged in (data[: start + 50], b"PK" + data, inside):
        answers(bytes(damaged))


def test_without_flatbuffers(exported: jax.export.Exported, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytes(exported.serialize())
    reader = next(name for name in sys.modules if name.endswith(".export.serialization_generated"))
    monkeypatch.delitem(sys.modules, reader)
    monkeypatch.setitem(sys.modules, "flatbuffers", None)
    message = "<stdin>: error: a file of jax.export, which needs flatbuffers: pip install 'jaxpp[export]'\n"
    assert runline.call(opt.main, "-", stdin=data).texts == (1, "", message)
