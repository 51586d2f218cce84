"""Whatever the bytes of a module, the tool answers, and its process lives on."""

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

DAMAGED = "MLIR bytecode inside of a file of another form, or a damaged file of jax.export"


def answers(data: bytes, *argv: str) -> int:
    """The exit code for this input: a result or an error, and no bug of a pass."""
    code, out, err = runline.call(opt.main, "-", *argv, stdin=data).texts
    assert code in (0, 1), err
    assert (code == 0) == bool(out), (code, err)
    assert code == 0 or ": error: " in err, err
    return code


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
