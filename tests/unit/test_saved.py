"""Compiled steps that are saved and loaded; what is said of files that are damaged, or of another place."""

# pyright: reportUnknownLambdaType=false

import dataclasses
import hashlib
import io
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from unit.end_to_end.compare import ROWS, WIDTH, batch, layers, make_mesh, weights

import jaxpp
from jaxpp import _compat, loading, schedules
from jaxpp.healing.training import loaded_or_compiled
from jaxpp.loading import load_for
from jaxpp.saved import trees
from jaxpp.saved.saved_step import SavedStep, SavedStepError
from jaxpp.schedules.rewrites.tasks import insert
from jaxpp.step import LoweredStep

EXPLICIT = jax.sharding.AxisType.Explicit


class State(NamedTuple):
    """Of a training."""

    weights: Any
    key: Any
    count: Any


def noisy_step(state: State, examples: dict[str, Any]) -> tuple[State, dict[str, Any]]:
    """A step with a class of the user's, random keys, a weak type and nothing in its arguments or results."""
    key, noise = jax.random.split(state.key)

    def loss(weights: Any, microbatch: dict[str, Any]) -> Any:
        x = microbatch["x"] + 0.1 * jax.random.normal(noise, (ROWS, WIDTH))
        return jnp.mean((layers(weights, x) - microbatch["y"]) ** 2)

    value, gradients = jaxpp.treduce(
        partial(jax.value_and_grad(loss), state.weights), examples, schedule=schedules.Std1F1B(2)
    )
    updated = [w - 0.1 * g for w, g in zip(state.weights, gradients, strict=True)]
    return State(updated, key, state.count + 1), {"loss": value, "nothing": None}


def state() -> State:
    return State(weights(2), jax.random.key(0), 1.0)


@pytest.fixture(scope="module")
def step() -> Any:
    return jaxpp.mpmd_jit_with_loop(noisy_step, make_mesh(2, data=2)).compile(state(), batch(4))


@pytest.fixture(scope="module")
def files(step: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    step.save(folder)
    return folder


@pytest.fixture
def saved(files: Path, tmp_path: Path) -> Path:
    """A saved step that the test may damage."""
    return Path(shutil.copytree(files, tmp_path / "step"))


def test_a_loaded_step_does_the_same(step: Any, saved: Path, tmp_path: Path) -> None:
    loaded = jaxpp.load(saved, like=state())
    loaded.save(tmp_path / "again")  # what was loaded can be saved, too
    devices = np.array(jax.devices()[4:]).reshape(2, 2, 1)
    elsewhere = jaxpp.MpmdMesh(jax.sharding.Mesh(devices, ("mpmd", "data", "model")), "mpmd")
    moved = jaxpp.load(tmp_path / "again", elsewhere, like=(state(), 1))
    for other in (loaded, moved):
        ours, theirs = step(state(), batch(4)), other(state(), batch(4))
        assert jax.tree.structure(ours) == jax.tree.structure(theirs)
        for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
            assert a.aval == b.aval
            np.testing.assert_array_equal(bits(a), bits(b))
        assert other.summary() == step.summary()
    assert moved(state(), batch(4))[0].weights[1].sharding.device_set == set(jax.devices()[6:])
    assert repr(loaded.in_shardings) == repr(step.in_shardings)
    with pytest.raises(TypeError, match=r"^argument `state` is a dict, expected a State: the step was compiled"):
        loaded(state()._asdict(), batch(4))
    with pytest.raises(ValueError, match=re.escape("argument `examples['x']` is float32[2, 4, 8]")):
        loaded(state(), batch(2))


def bits(array: Any) -> Any:
    """The numbers of an array, also of random keys."""
    return jax.random.key_data(array) if jnp.issubdtype(array.dtype, jax.dtypes.prng_key) else array


def test_what_is_compiled_here_is_saved_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without JAX's persistent cache; with it, as in all other tests, functions are compiled once more."""
    monkeypatch.setattr(_compat, "cache_entry", lambda *_: None)
    arrays = np.eye(5, dtype="f4"), np.ones((2, 4, 5), "f4")  # of a shape that nobody has compiled before
    step = jaxpp.mpmd_jit_with_loop(doubled, make_mesh(1)).compile(*arrays)
    step.save(tmp_path)
    np.testing.assert_array_equal(jaxpp.load(tmp_path)(*arrays), step(*arrays))


def test_files_that_are_damaged(saved: Path, tmp_path: Path) -> None:
    path = saved / "process_0"
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    damaged = [b"", b"\x80\x04.", whole[: len(whole) // 2], bytes(flipped), whole + b"\0"]
    for data in damaged:
        path.write_bytes(data)
        with pytest.raises(SavedStepError, match=rf"{re.escape(str(path))}: it is damaged, or no saved step: .*; save"):
            jaxpp.load(saved)
    (tmp_path / "file").touch()
    for nowhere in (tmp_path / "nowhere", tmp_path, tmp_path / "file"):
        with pytest.raises(FileNotFoundError) as error:
            jaxpp.load(nowhere)
        assert str(error.value) == (
            f"{nowhere}: there is no saved step: expected a folder that compiled.save(path) made, and in it process_0, "
            "the file of this process"
        )


def signed(archive: bytes) -> bytes:
    """An archive with the digest that `SavedStep.write` would give it."""
    data = archive[:-2] + (32).to_bytes(2, "little")
    return data + hashlib.sha256(data).digest()


@pytest.mark.parametrize(
    ("compression", "parts", "message"),
    [
        (zipfile.ZIP_DEFLATED, {}, "step.json is compressed"),
        (zipfile.ZIP_STORED, {"step.json": b"[" * 200_000}, "its description is nested too deep"),
        (zipfile.ZIP_STORED, {"step.json": b"[]"}, r"its description is \[\]"),
        (zipfile.ZIP_STORED, {"more": b""}, r"what is more\?"),
        (zipfile.ZIP_STORED, {"code/more": b""}, "machine code of nobody: more"),
        (zipfile.ZIP_STORED, {"program.mlirbc": b"module {"}, "MLIRError: Unable to parse module .*"),
        (zipfile.ZIP_STORED, {"program.mlirbc": b"module {}"}, "the module has no mesh functions"),
    ],
)
def test_archives_that_are_forged(saved: Path, compression: int, parts: dict[str, bytes], message: str) -> None:
    path, forged = saved / "process_0", io.BytesIO()
    with zipfile.ZipFile(path) as old:
        found = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(forged, "w", compression) as new:
        for name, data in {**found, **parts}.items():
            new.writestr(name, data)
    path.write_bytes(signed(forged.getvalue()))
    with pytest.raises(
        SavedStepError, match=rf"^{re.escape(str(path))}: it is damaged, or no saved step: {message}; save"
    ):
        jaxpp.load(saved, like=state())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        # Called, a step with this structure ended by a signal.
        (lambda it: it["out_tree"][2].__setitem__(1, []), r"a structure with a dict of 2 values and the keys \[\]"),
        (
            lambda it: it["out_tree"][2].__setitem__(1, ["nothing", "loss"]),
            "a structure with a dict of 2 values and the",
        ),
        (lambda it: it["out_tree"].append(None), "a structure with|[0-9] or [0-9] results"),
        (lambda it: it["out_tree"].__setitem__(0, []), r"a structure with a node \[\]"),
        (lambda it: it.update(in_tree=["none", None]), "a structure with a None that has children"),
        (lambda it: it.update(in_tree=5), "a structure with 5"),
        (
            lambda it: it["in_types"][0].__setitem__(1, "int8"),
            r"state.weights\[0\] is int8\[8,8\], in its program float32",
        ),
        (lambda it: it["in_types"][2].__setitem__(3, "zzz"), 'unrecognized PRNG implementation "zzz"'),
        (lambda it: it["out_types"].pop(), "[0-9] or [0-9] results"),
        (lambda it: it["donated"].__setitem__(0, True), r"state.weights\[0\] is donated in its description or its"),
        (lambda it: it["in_names"].__setitem__(0, 3), "in_names\\[0\\] is 3"),
        (lambda it: it.update(feeds=[[False, 0]]), r"feeds\[0\]\[0\] is false"),
        (lambda it: it.update(feeds=[[0, 77]]), "result 0 is said to be argument 77 of the next step"),
        (lambda it: it.update(compiler_options=[]), r"compiler_options is \[\]"),
        (lambda it: it.update(compiler_options={"0": 5}), "compiler_options of mesh 0: expected names of options and "),
        (lambda it: it.update(surroundings=None), "surroundings is null"),
        (lambda it: it["axes"].update(data="Odd"), "an axis of the type 'Odd'"),
        (lambda it: it["in_types"][0].__setitem__(0, [-1]), r"in_types\[0\]\[0\]\[0\] is -1"),
        (lambda it: it["in_types"][0].__setitem__(1, "int7"), "data type 'int7' not understood"),
        (lambda it: it["in_tree"][1].__setitem__(1, ["class", 5]), "a structure with a node of the class 5"),
        (lambda it: it["in_tree"].__setitem__(1, None), "its arguments are no tuple and a dict of keywords"),
    ],
)
def test_descriptions_that_are_forged(saved: Path, change: Callable[[Any], object], message: str) -> None:
    found = SavedStep.read(saved)
    change(found.description)
    found.write(saved)
    with pytest.raises(SavedStepError, match=f"process_0: it is damaged, or no saved step: {message}"):
        jaxpp.load(saved, like=state())


def test_every_cut_and_every_flipped_byte_is_found(saved: Path) -> None:
    path = saved / "process_0"
    whole = path.read_bytes()
    for place in range(0, len(whole), len(whole) // 20):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 8
        for data in (whole[:place], bytes(flipped)):
            path.write_bytes(data)
            with pytest.raises(SavedStepError, match="process_0: it is damaged, or no saved step: "):
                jaxpp.load(saved, like=state())


def test_a_bug_is_no_damaged_file(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (AssertionError(), TypeError("bug"), KeyError("bug"), AttributeError("bug"), RuntimeError("bug")):
        monkeypatch.setattr("jaxpp.loading.check_saved", lambda *_, error=error: (_ for _ in ()).throw(error))
        with pytest.raises(type(error)):
            jaxpp.load(saved, like=state())


def test_a_file_of_another_version_has_another_form(saved: Path) -> None:
    """It is refused by its version, whatever else it says."""
    found = SavedStep.read(saved)
    surroundings = {**found.description["surroundings"], "jaxpp": "9.9"}
    SavedStep({"format": 2, "surroundings": surroundings, "news": 3}, b"", {}).write(saved)
    with pytest.raises(
        SavedStepError, match=r"process_0: saved with jaxpp 9\.9, here is .*: compile the step and save"
    ):
        jaxpp.load(saved)
    SavedStep({"format": 3}, b"", {}).write(saved)
    with pytest.raises(SavedStepError, match="process_0: it is of format 3, expected 2: compile the step and save it"):
        jaxpp.load(saved)


def test_custom_calls_that_this_process_has_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def step(w: Any, xs: Any) -> Any:
        return jaxpp.treduce(
            lambda x: jaxpp.mark_stage_end(jnp.linalg.cholesky(w) @ x), xs, schedule=schedules.GPipe(1)
        )

    arguments = 2 * np.eye(4, dtype="f4"), np.ones((2, 4, 4), "f4")
    jaxpp.mpmd_jit_with_loop(step, make_mesh(1)).compile(*arguments).save(tmp_path)
    monkeypatch.setattr("jaxpp.ir.custom_calls.custom_call_targets", lambda _: frozenset())
    with pytest.raises(
        SavedStepError,
        match=r"the custom call @lapack_spotrf_ffi is not registered in this process: import what registers it \(jax",
    ):
        jaxpp.load(tmp_path)


CHOLESKY = """
import sys, jax, jax.numpy as jnp, numpy as np, jaxpp
mesh = jaxpp.MpmdMesh(jax.sharding.Mesh(np.array(jax.devices()[:1]), ("mpmd",)), "mpmd")
arguments = 2 * np.eye(4, dtype="f4"), np.ones((2, 4, 4), "f4")
if sys.argv[1] == "save":
    def step(w, xs):
        return jaxpp.treduce(lambda x: jaxpp.mark_stage_end(jnp.linalg.cholesky(w) @ x), xs, schedule="gpipe")
    jaxpp.mpmd_jit_with_loop(step, mesh).compile(*arguments).save(sys.argv[2])
else:
    print(jaxpp.load(sys.argv[2])(*arguments)[0, 0])
"""


def test_lapack_in_a_process_that_lowered_nothing(tmp_path: Path) -> None:
    """JAX initializes jaxlib's kernels when it lowers a call of one; else a call jumps to address 0."""
    found = [
        subprocess.run(
            [sys.executable, "-c", CHOLESKY, what, str(tmp_path)], capture_output=True, text=True, check=False
        )
        for what in ("save", "load")
    ]
    assert [each.returncode for each in found] == [0, 0], found[-1].stderr
    assert float(found[1].stdout) == pytest.approx(2 * 2**0.5, rel=1e-6)


def test_code_that_is_missing(saved: Path) -> None:
    found = SavedStep.read(saved)
    SavedStep(found.description, found.program, {}).write(saved)
    with pytest.raises(SavedStepError, match="machine code is missing: "):
        jaxpp.load(saved, like=state())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda it: it["surroundings"].update(jaxlib="0.1"), r"saved with jaxlib 0\.1, here is \d.*: compile the step"),
        (lambda it: it["surroundings"].update(devices="TPU v5"), "saved with devices TPU v5, here is cpu, cpu"),
        (lambda it: it["surroundings"].update(processor="x86"), "saved with processor x86, here is "),
        (lambda it: it["surroundings"].update(transport="pair"), "saved with transport pair, here is pull"),
        (lambda it: it["devices"][0].append(99), "saved for 5 devices; here are 8, without number 99: give a mesh"),
        (lambda it: it.update(format=0), "it is of format 0, expected 2: compile the step and save it again"),
    ],
)
def test_steps_of_another_place(saved: Path, change: Callable[[Any], object], message: str) -> None:
    found = SavedStep.read(saved)
    change(found.description)
    found.write(saved)
    with pytest.raises(SavedStepError, match=message):
        jaxpp.load(saved, like=state())


def test_other_meshes_and_unknown_classes(saved: Path) -> None:
    with pytest.raises(
        SavedStepError,
        match=r"with meshes 2: \{.*'data': 2.*\} on 4 devices, here is 4: \{.*'data': 1.*\} on 4 devices: ",
    ):
        jaxpp.load(saved, make_mesh(4), like=state())
    with pytest.raises(SavedStepError, match=r"node of the class .*test_saved\.State, which is not in `like`: give"):
        jaxpp.load(saved)
    axes = jax.sharding.Mesh(np.array(jax.devices()[:4]).reshape(2, 2, 1), ("mpmd", "data", "model"), (EXPLICIT,) * 3)
    with pytest.raises(SavedStepError, match="axis types Auto, Auto, Auto, here is Explicit, Explicit, Explicit"):
        jaxpp.load(saved, jaxpp.MpmdMesh(axes, "mpmd"), like=state())
    with pytest.raises(TypeError, match=r"expected a jaxpp\.MpmdMesh, found Mesh; write"):
        jaxpp.load(saved, axes, like=state())  # pyright: ignore[reportArgumentType]  # what is tested


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Counted:
    """A class with static data."""

    value: Any
    count: Any = dataclasses.field(metadata={"static": True})


def test_what_fits_is_what_load_takes(tmp_path: Path) -> None:
    """A step whose results have a class that its arguments lack can't be loaded by what `load_for` has."""
    arguments = jnp.eye(4), jnp.ones((2, 3, 4))
    for result in (lambda out: {"out": out}, lambda out: Counted(out, 3)):
        step = jaxpp.mpmd_jit_with_loop(lambda w, xs, result=result: result(doubled(w, xs)), make_mesh(1))
        step.compile(*arguments).save(tmp_path)
        assert (load_for(tmp_path, arguments) is not None) == isinstance(step(*arguments), dict)
    assert load_for(tmp_path, (jnp.eye(4), jnp.ones((4, 3, 4)))) is None


def test_static_data() -> None:
    written = trees.to_json(jax.tree.structure(Counted(1, 3)))
    assert trees.from_json(written, trees.nodes_of(Counted(2, 3))) == jax.tree.structure(Counted(1, 3))
    with pytest.raises(LookupError, match=r"Counted with 1 child and \(3,\), which has 1 child and \(4,\) in `like`"):
        trees.from_json(written, trees.nodes_of([Counted(1, 4)]))
    # An address differs between processes; a number of the user's does not.
    written = trees.to_json(jax.tree.structure(Counted(1, "0x3")))
    with pytest.raises(LookupError, match="0x3"):
        trees.from_json(written, trees.nodes_of(Counted(1, "0x4")))


def test_code_that_xla_refuses(saved: Path) -> None:
    found = SavedStep.read(saved)
    SavedStep(found.description, found.program, dict.fromkeys(found.code, b"code")).write(saved)
    with pytest.raises(SavedStepError, match=r"XLA can't load it: .*; compile the step and save it again"):
        jaxpp.load(saved, like=state())


def test_a_training_that_heals_compiles_again_what_xla_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also what is damaged, and what another process can't load."""
    made, arguments = jaxpp.mpmd_jit_with_loop(doubled, make_mesh(1)), (jnp.eye(4), jnp.ones((2, 3, 4)))
    compiled = mock.Mock(wraps=LoweredStep.compile)
    monkeypatch.setattr(LoweredStep, "compile", lambda *given: compiled(*given))

    def run() -> tuple[bool, str]:
        """Whether the step is compiled, and what is told."""
        compiled.reset_mock()
        step = loaded_or_compiled(made, tmp_path, arguments)
        is_compiled = compiled.called
        np.testing.assert_array_equal(step(*arguments), made(*arguments))
        return is_compiled, capsys.readouterr().err

    assert run() == (True, "")
    assert run() == (False, "")
    found = SavedStep.read(tmp_path)
    SavedStep(found.description, found.program, dict.fromkeys(found.code, b"code")).write(tmp_path)
    is_compiled, told = run()
    assert is_compiled
    assert told.startswith(f"jaxpp: a saved step is made again: {tmp_path}: XLA can't load it: ")
    assert run() == (False, "")
    (tmp_path / "process_0").write_bytes(b"damaged")
    assert run() == (True, "")
    assert run() == (False, "")
    in_all = loading._in_all

    def in_no_other(make: Any) -> Any:
        in_all(make)
        if make.__name__ == "loaded":
            raise SavedStepError("the step can't be loaded in process 1: XLA can't load it")
        return in_all(make)

    monkeypatch.setattr(loading, "_in_all", in_no_other)
    with monkeypatch.context() as of_others:
        of_others.setattr(SavedStep, "write", lambda self, folder: (_ for _ in ()).throw(OSError("the disk is full")))
        is_compiled, told = run()
    assert is_compiled
    assert told == (
        "jaxpp: a saved step is made again: the step can't be loaded in process 1: XLA can't load it\n"
        "jaxpp: the step is not saved for the next time: the disk is full\n"
    )


def doubled(w: Any, xs: Any, schedule: Any = None, callback: bool = False) -> Any:
    """A loop of forwards."""

    def one(x: Any) -> Any:
        if callback:
            jax.debug.callback(lambda _: None, x[0, 0])
        return jaxpp.mark_stage_end(jnp.sin(x @ w) * 2)

    return jaxpp.treduce(one, xs, schedule=schedule or schedules.GPipe(1))


LOGGED = insert(
    schedules.make("gpipe", meshes=1, microbatches=2), schedules.Operation.parse("log: forward"), 0, after="forward"
)


@pytest.mark.parametrize(
    ("mesh", "options", "operations", "message"),
    [
        (
            lambda: make_mesh(1),
            {"callback": True},
            {},
            "the step has callbacks, and functions of Python can't be saved",
        ),
        (lambda: make_mesh(1), {"schedule": LOGGED}, {"log": print}, "the step has operations of yours, and functions"),
        (
            lambda: jaxpp.target("cpu", devices=1).mesh((1,), ("mpmd",)),
            *({}, {}, "expected a step on devices of JAX that are here, found a PlannedProgram, which has no file"),
        ),
    ],
)
def test_steps_that_are_not_saved(
    mesh: Callable[[], Any], options: Any, operations: Any, message: str, tmp_path: Path
) -> None:
    calls = jaxpp.StepOptions(operations=operations)
    step = jaxpp.mpmd_jit_with_loop(partial(doubled, **options), mesh(), options=calls)
    compiled = step.compile(np.eye(4, dtype="f4"), np.ones((2, 4, 4), "f4"))
    with pytest.raises(ValueError, match=f"save: {message}"):
        compiled.save(tmp_path / "step")
    assert not (tmp_path / "step").exists()


def test_options_of_one_mesh(tmp_path: Path) -> None:
    """Meshes of equal stages have one program, unless their options differ; the saved step knows of both."""
    arrays = weights(4), jnp.ones((4, ROWS, WIDTH))
    step = jaxpp.mpmd_jit_with_loop(
        lambda weights, xs: jaxpp.treduce(partial(layers, weights), xs, schedule=schedules.Std1F1B(4)),
        make_mesh(4),
        compiler_options={"xla_cpu_enable_fast_math": False, 2: {"xla_cpu_enable_fast_math": True}},
    ).compile(*arrays)
    step.save(tmp_path)
    saved = SavedStep.read(tmp_path)
    forwards = {name for name in saved.code if name.startswith("forward")}
    assert forwards == {"forward_0", "forward_1", "forward_1 on mesh 2", "forward_3"}
    np.testing.assert_array_equal(jaxpp.load(tmp_path)(*arrays), step(*arrays))
