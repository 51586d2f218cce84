"""The file of a compiled step: what `CompiledStep.save` writes and `jaxpp.load` reads.

It is a zip archive: a description in JSON, the program as MLIR bytecode, and the machine code of each function. Its
comment is a digest of all before it, by which damage is found. Nothing in it is pickled, but machine code is run: it is
as trustworthy as a program.
"""

import contextlib
import hashlib
import io
import json
import os
import platform
import zipfile
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
from jaxlib.mlir import ir

from jaxpp import _system, trees
from jaxpp._compat import is_key_type, key_implementation
from jaxpp.lowering.lower import Lowered
from jaxpp.lowering.mesh import MpmdMesh
from jaxpp.runtime.execution.options import Options
from jaxpp.runtime.processes.choice import transport_between
from jaxpp.runtime.processes.membership import ProcessError
from jaxpp.runtime.processes.waiting import in_a_line

_FORMAT = 1
_DESCRIPTION, _PROGRAM, _CODE = "step.json", "program.mlirbc", "code/"
_VERSIONS = ("jax", "jaxlib", "jaxpp")


class SavedStepError(ValueError):
    """The file of a compiled step is damaged, or for another machine."""


@dataclass(frozen=True)
class SavedStep:
    """A compiled step, as one process holds it.

    description: JSON: `described`, and what it was compiled with and for: `surroundings`.
    program: the program module, as bytecode.
    code: what XLA made of each function.
    """

    description: Mapping[str, Any]
    program: bytes
    code: Mapping[str, bytes]

    def write(self, folder: str | os.PathLike[str]) -> None:
        """Write this process's file, whole or not at all."""
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.comment = bytes(_DIGEST)
            archive.writestr(_DESCRIPTION, json.dumps(self.description))
            archive.writestr(_PROGRAM, self.program)
            for name, data in self.code.items():
                archive.writestr(_CODE + name, data)
        os.makedirs(folder, exist_ok=True)
        data = buffer.getvalue()[:-_DIGEST]
        _system.write_file(str(file_of(folder)), data + hashlib.sha256(data).digest())

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> "SavedStep":
        """Read this process's file. Raises SavedStepError for a damaged one, OSError where there is none."""
        path = file_of(folder)
        try:
            data = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(
                f"{os.fspath(folder)}: there is no saved step: expected a folder that compiled.save(path) made, and in "
                f"it {path.name}, the file of this process"
            ) from None
        with refused(folder):
            if hashlib.sha256(data[:-_DIGEST]).digest() != data[-_DIGEST:]:
                raise ValueError("it is not as it was written")
            found = _members(data)
            if missing := {_DESCRIPTION, _PROGRAM} - found.keys():
                raise ValueError(f"it has no {min(missing)}")
            description, program = _described(path, found.pop(_DESCRIPTION)), found.pop(_PROGRAM)
            if strange := [name for name in found if not name.startswith(_CODE)]:
                raise ValueError(f"what is {strange[0]}?")
        return cls(description, program, {name.removeprefix(_CODE): code for name, code in found.items()})


_AGAIN = "compile the step and save it again"
_DIGEST = hashlib.sha256().digest_size


def _described(path: Path, text: bytes) -> Mapping[str, Any]:
    """Reads a description. Raises SavedStepError for one of another version, ValueError for one of another form."""
    try:
        description = json.loads(text)
    except RecursionError:
        raise ValueError("its description is nested too deep") from None
    form = description.get("format") if isinstance(description, dict) else None
    if isinstance(form, int) and form != _FORMAT:
        raise SavedStepError(f"{path}: it is of format {form}, expected {_FORMAT}: {_AGAIN}")
    _check_form("its description", description, {"format": int, "surroundings": dict})
    for name in _VERSIONS:
        _check_surrounding(path, description, name, version(name))
    _check_form("its description", description, _FORM)
    return description


_FORM = {
    "surroundings": {str: str},
    "devices": [[int]],
    "shapes": [[int]],
    "mpmd_axis": str,
    "axes": {str: str},
    "compiler_options": {str: object},
    "in_tree": object,
    "out_tree": object,
    "in_types": [([int], str, bool, str)],
    "out_types": [([int], str, bool, str)],
    "in_names": [str],
    "out_names": [str],
    "donated": [bool],
    "feeds": [(int, int)],
}
"""What each entry of a description is: a list or a dict of some type, or a list of these types; an int is from 0 on."""


def _check_form(what: str, found: Any, form: Any) -> None:
    """Raises ValueError for JSON that is not of this form."""
    if isinstance(form, type):
        fits, inner = isinstance(found, form) and (form is not int or (found is not True and found >= 0)), []
    elif isinstance(form, list):
        fits = isinstance(found, list)
        inner = [(f"{what}[{number}]", each, form[0]) for number, each in enumerate(found if fits else ())]
    elif isinstance(form, tuple):
        fits = isinstance(found, list) and len(found) == len(form)
        entries = zip(found, form, strict=True) if fits else ()
        inner = [(f"{what}[{number}]", *entry) for number, entry in enumerate(entries)]
    elif str in form:
        fits = isinstance(found, dict)
        inner = [(f"{what}[{name!r}]", each, form[str]) for name, each in (found.items() if fits else ())]
    else:
        fits = isinstance(found, dict) and form.keys() <= found.keys()
        inner = [(name, found[name], form[name]) for name in (form if fits else ())]
    if not fits:
        raise ValueError(f"{what} is {json.dumps(found)[:100]}")
    for each in inner:
        _check_form(*each)


def _members(data: bytes) -> dict[str, bytes]:
    """What an archive has. Members that are compressed, which could be of any size, are none of ours."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for each in archive.infolist():
                if each.compress_type != zipfile.ZIP_STORED:
                    raise ValueError(f"{each.filename} is compressed")
            return {name: archive.read(name) for name in archive.namelist()}
    except (RuntimeError, EOFError) as error:  # such as an archive with a password
        raise ValueError(str(error)) from None


@contextlib.contextmanager
def refused(folder: str | os.PathLike[str]) -> Generator[None]:
    """Turns what reading a file raises that is not as `write` made it into a SavedStepError; a bug stays what it is."""
    try:
        yield
    except (SavedStepError, ProcessError):
        raise
    except (zipfile.BadZipFile, ValueError, ir.MLIRError) as error:  # PassError, of a program, is a ValueError there
        said = str(error).partition("\n")[0][:300] if isinstance(error, ValueError) else in_a_line(error)
        raise SavedStepError(
            f"{file_of(folder)}: it is damaged, or no saved step: {said}; save the step again"
        ) from error


def file_of(folder: str | os.PathLike[str]) -> Path:
    """The file of this process."""
    return Path(folder) / f"process_{jax.process_index()}"


def described(lowered: Lowered, compiler_options: Options) -> dict[str, Any]:
    """What a step is beside its program, as JSON."""
    mesh = lowered.mpmd_mesh
    return {
        "format": _FORMAT,
        "surroundings": surroundings(mesh),
        "devices": [[device.id for device in each.devices.flat] for each in mesh.unstack],
        "shapes": [list(each.devices.shape) for each in mesh.unstack],
        "mpmd_axis": mesh.mpmd_axis_name,
        "axes": {
            name: kind.name for name, kind in zip(mesh.jax_mesh.axis_names, mesh.jax_mesh.axis_types, strict=True)
        },
        "compiler_options": dict(compiler_options),
        "in_tree": trees.to_json(lowered.in_tree),
        "out_tree": trees.to_json(lowered.out_tree),
        "in_types": [_type(each) for each in lowered.in_avals],
        "out_types": [_type(each) for each in lowered.out_avals],
        "in_names": lowered.in_names,
        "out_names": lowered.out_names,
        "donated": lowered.donated,
        "feeds": [*lowered.feeds.items()],
    }


def surroundings(mesh: MpmdMesh) -> dict[str, str]:
    """What has to be the same where a step is saved and where it is loaded, each as it is called in errors."""
    devices = [device for each in mesh.unstack for device in each.devices.flat]
    axes = [dict(each.shape) for each in mesh.unstack]
    found = {name: version(name) for name in _VERSIONS}
    found["devices"] = f"{devices[0].device_kind}, {devices[0].client.platform_version}"
    found["processor"] = platform.machine()
    if devices[0].platform == "cpu":
        found["processor"] += f" {_processor()}"
    found["processes"] = str(jax.process_count())
    number = len(set(devices))
    found["meshes"] = f"{len(axes)}: {', '.join(dict.fromkeys(map(str, axes)))} on {number} device{'s' * (number > 1)}"
    found["axis types"] = ", ".join(kind.name for kind in mesh.jax_mesh.axis_types)
    found["owners"] = str([[device.process_index for device in each.devices.flat] for each in mesh.unstack])
    found["transport"] = transport_between(devices)
    return found


def _processor() -> str:
    """A digest of what the processor can do, as far as the system tells: code for CPUs is made for that."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return hashlib.sha256(flags.encode()).hexdigest()[:8]


def check_surroundings(saved: SavedStep, mesh: MpmdMesh, folder: str | os.PathLike[str]) -> None:
    """Raise SavedStepError for a step that was saved elsewhere."""
    for name, here in surroundings(mesh).items():
        _check_surrounding(file_of(folder), saved.description, name, here)


def _check_surrounding(path: Path, description: Mapping[str, Any], name: str, here: str) -> None:
    found = description["surroundings"].get(name)
    if found != here:
        raise SavedStepError(f"{path}: saved with {name} {found}, here is {here}: {_AGAIN}")


def _type(aval: Any) -> list[Any]:
    """[shape, dtype, is weakly typed, generator of random keys]."""
    is_key = is_key_type(aval.dtype)
    name = "" if is_key else aval.dtype.name
    key = key_implementation(aval.dtype) if is_key else ""
    return [list(aval.shape), name, bool(getattr(aval, "weak_type", False)), key]


def types(described: Sequence[Any]) -> tuple[Any, ...]:
    """The types that `described` wrote. Raises ValueError for anything else."""
    return tuple(
        jax.core.ShapedArray(tuple(shape), _key_dtype(key) if key else _dtype(name), weak_type=weak)
        for shape, name, weak, key in described
    )


def _dtype(name: str) -> Any:
    try:
        return jnp.dtype(name)
    except TypeError as error:
        raise ValueError(str(error)) from None


def _key_dtype(implementation: str) -> Any:
    return jax.eval_shape(lambda: jax.random.key(0, impl=implementation)).dtype
