"""The file of a compiled step, which `CompiledStep.save` writes and `jaxpp.load` reads.

It is a zip archive: a description in JSON, the program as MLIR bytecode, and the machine code of each function. Its
comment is a digest of all bytes before it, which reveals damage. Nothing in it is pickled, but its machine code is run:
trust a file as you would trust an executable.
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

from jaxpp import _system
from jaxpp._keys import generator_of, is_key
from jaxpp.lowering.lower import Lowered
from jaxpp.lowering.mesh import MpmdMesh
from jaxpp.runtime.execution.options import Options
from jaxpp.runtime.processes.choice import transport_between
from jaxpp.runtime.processes.membership import ProcessError
from jaxpp.runtime.processes.waiting import in_a_line
from jaxpp.saved import trees

_FORMAT = 2
_DESCRIPTION, _PROGRAM, _CODE = "step.json", "program.mlirbc", "code/"
_VERSIONS = ("jax", "jaxlib", "jaxpp")


class SavedStepError(ValueError):
    """The error for a file of a compiled step that is damaged, or made for another machine."""


@dataclass(frozen=True)
class SavedStep:
    """A compiled step, as one process holds it.

    description: the JSON of `described`, which includes `surroundings`.
    program: the program module, as bytecode.
    code: the machine code of each function, by name.
    """

    description: Mapping[str, Any]
    program: bytes
    code: Mapping[str, bytes]

    def write(self, folder: str | os.PathLike[str]) -> None:
        """Writes the file of this process, completely or not at all."""
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
    def read(cls, folder: str | os.PathLike[str], process: int | None = None) -> "SavedStep":
        """Reads the file of a process, by default of this one.

        Raises:
            SavedStepError: the file is damaged, or was written by other versions of JAX or jaxpp.
            OSError: the file is missing or can't be read.
        """
        path = file_of(folder, process)
        try:
            data = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(
                f"{os.fspath(folder)}: there is no saved step: expected a folder that compiled.save(path) made, and in "
                f"it {path.name}, the file of {'this' if process is None else 'that'} process"
            ) from None
        with refused(path):
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
    """Reads a description from JSON.

    Raises:
        SavedStepError: the format, JAX, jaxlib or jaxpp has another version.
        ValueError: the JSON does not have the form of a description.
    """
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
"""The form of each entry of a description.

`[form]` is a list and `{str: form}` a dict of such values; a tuple of forms is a list with one value of each. An int
is at least 0.
"""


def _check_form(what: str, found: Any, form: Any) -> None:
    """Raises ValueError for JSON that is not of this form."""
    if isinstance(form, type):
        fits, inner = isinstance(found, form) and (form is not int or (not isinstance(found, bool) and found >= 0)), []
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
    """Returns the members of an archive. Raises ValueError for compressed ones, which could expand to any size."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for each in archive.infolist():
                if each.compress_type != zipfile.ZIP_STORED:
                    raise ValueError(f"{each.filename} is compressed")
            return {name: archive.read(name) for name in archive.namelist()}
    except (RuntimeError, EOFError) as error:  # such as an archive with a password
        raise ValueError(str(error)) from None


@contextlib.contextmanager
def refused(path: Path) -> Generator[None]:
    """Turns errors that a damaged file causes into SavedStepErrors; other exceptions pass unchanged."""
    try:
        yield
    except (SavedStepError, ProcessError):
        raise
    except (zipfile.BadZipFile, ValueError, ir.MLIRError) as error:  # a PassError is a ValueError
        said = str(error).partition("\n")[0][:300] if isinstance(error, ValueError) else in_a_line(error)
        raise SavedStepError(f"{path}: it is damaged, or no saved step: {said}; save the step again") from error


def file_of(folder: str | os.PathLike[str], process: int | None = None) -> Path:
    """Returns the path of the file of a process, by default of this one."""
    return Path(folder) / f"process_{jax.process_index() if process is None else process}"


def described(lowered: Lowered, compiler_options: Options) -> dict[str, Any]:
    """Returns the description of a step as JSON: everything but its program and its machine code."""
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
    """Returns the properties that must be equal where a step is saved and loaded, by their names in errors."""
    devices = [device for each in mesh.unstack for device in each.devices.flat]
    axes = [dict(each.shape) for each in mesh.unstack]
    found = {name: version(name) for name in _VERSIONS}
    found["devices"] = f"{devices[0].device_kind}, {devices[0].client.platform_version}"
    found["processor"] = _processor(devices[0].platform)
    found["processes"] = str(jax.process_count())
    number = len(set(devices))
    found["meshes"] = f"{len(axes)}: {', '.join(dict.fromkeys(map(str, axes)))} on {number} device{'s' * (number > 1)}"
    found["axis types"] = ", ".join(kind.name for kind in mesh.jax_mesh.axis_types)
    found["owners"] = str([[device.process_index for device in each.devices.flat] for each in mesh.unstack])
    found["transport"] = transport_between(devices)
    return found


def check_processor(saved: SavedStep, path: Path) -> None:
    """Raises SavedStepError if the machine code, which is for CPUs, is for another processor."""
    _check_surrounding(path, saved.description, "processor", _processor("cpu"))


def _processor(devices: str) -> str:
    """Returns the processor's name, for CPUs with a digest of its features, on which their machine code depends."""
    return f"{platform.machine()} {_features()}" if devices == "cpu" else platform.machine()


def _features() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return hashlib.sha256(flags.encode()).hexdigest()[:8]


def check_surroundings(saved: SavedStep, mesh: MpmdMesh, folder: str | os.PathLike[str]) -> None:
    """Raises SavedStepError if a property of `surroundings` differs from the one that was saved."""
    for name, here in surroundings(mesh).items():
        _check_surrounding(file_of(folder), saved.description, name, here)


def _check_surrounding(path: Path, description: Mapping[str, Any], name: str, here: str) -> None:
    found = description["surroundings"].get(name)
    if found != here:
        raise SavedStepError(f"{path}: saved with {name} {found}, here is {here}: {_AGAIN}")


def _type(aval: Any) -> list[Any]:
    """Returns [shape, dtype, whether it is weakly typed, implementation of random keys]."""
    name, key = ("", generator_of(aval)) if is_key(aval) else (aval.dtype.name, "")
    return [list(aval.shape), name, bool(getattr(aval, "weak_type", False)), key]


def types(described: Sequence[Any]) -> tuple[Any, ...]:
    """Returns the types that `described` wrote. Raises ValueError for an unknown dtype or kind of random key."""
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
