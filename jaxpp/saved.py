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
            description = json.loads(found.pop(_DESCRIPTION))
            if description["format"] != _FORMAT:
                raise SavedStepError(f"{path}: it is of format {description['format']}, expected {_FORMAT}: {_AGAIN}")
            program = found.pop(_PROGRAM)
            if strange := [name for name in found if not name.startswith(_CODE)]:
                raise ValueError(f"what is {strange[0]}?")
        return cls(description, program, {name.removeprefix(_CODE): code for name, code in found.items()})


_AGAIN = "compile the step and save it again"
_DIGEST = hashlib.sha256().digest_size


def _members(data: bytes) -> dict[str, bytes]:
    """What an archive has. Members that are compressed, which could be of any size, are none of ours."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for each in archive.infolist():
            if each.compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"{each.filename} is compressed")
        return {name: archive.read(name) for name in archive.namelist()}


@contextlib.contextmanager
def refused(folder: str | os.PathLike[str]) -> Generator[None]:
    """Whatever reading this process's file raises, as the SavedStepError of a damaged file."""
    try:
        yield
    except (SavedStepError, ProcessError):
        raise
    except _DAMAGED as error:
        said = str(error).partition("\n")[0][:300] if isinstance(error, ValueError) else in_a_line(error)
        raise SavedStepError(
            f"{file_of(folder)}: it is damaged, or no saved step: {said}; save the step again"
        ) from error


_DAMAGED = (
    *(zipfile.BadZipFile, LookupError, TypeError, ValueError, AttributeError, OverflowError),
    *(RuntimeError, OSError, EOFError, AssertionError, ir.MLIRError),
)
"""What a file raises that somebody has made by hand; PassError, of a program, is a ValueError there."""


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
    found: Mapping[str, str] = saved.description["surroundings"]
    for name, here in surroundings(mesh).items():
        if found.get(name) != here:
            raise SavedStepError(f"{file_of(folder)}: saved with {name} {found.get(name)}, here is {here}: {_AGAIN}")


def _type(aval: Any) -> list[Any]:
    """[shape, dtype, is weakly typed, generator of random keys]."""
    is_key = is_key_type(aval.dtype)
    name = "" if is_key else aval.dtype.name
    key = key_implementation(aval.dtype) if is_key else ""
    return [list(aval.shape), name, bool(getattr(aval, "weak_type", False)), key]


def types(described: Sequence[Any]) -> tuple[Any, ...]:
    """The types that `described` wrote. Raises TypeError or ValueError for anything else."""
    return tuple(
        jax.core.ShapedArray(tuple(shape), _key_dtype(key) if key else jnp.dtype(name), weak_type=bool(weak))
        for shape, name, weak, key in described
    )


def _key_dtype(implementation: str) -> Any:
    return jax.eval_shape(lambda: jax.random.key(0, impl=implementation)).dtype
