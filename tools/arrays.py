"""Files of named arrays: of `numpy.savez`, and of safetensors where the name ends with `.safetensors`."""

from importlib.util import find_spec
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np

from jaxpp.ir.errors import one_line
from jaxpp.tools import streams
from jaxpp.validation.records import read_npz, write_npz

Arrays: TypeAlias = dict[str, np.ndarray[Any, Any]]

_SUFFIX = ".safetensors"
_TYPES = {
    **{"BOOL": "bool", "C64": "complex64", "BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"},
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu"},
    **{"F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz"},
}
"""The types of safetensors by their names there. Its own reader for numpy lacks bfloat16 and those of 8 bits."""


def check_package(path: str) -> None:
    """Raises InputError if the package for a file of this name is missing, so that no run is in vain."""
    if path.endswith(_SUFFIX) and find_spec("safetensors") is None:
        raise streams.refused(path, "this needs safetensors: pip install 'jaxpp[safetensors]'")


def read_arrays(path: str) -> Arrays:
    """Reads the arrays of a file. Raises InputError."""
    return _read_safetensors(path) if path.endswith(_SUFFIX) else _read_npz(path)


def write_arrays(path: str, arrays: Arrays) -> None:
    """Writes arrays to a file. Raises InputError."""
    streams.write(path, _safetensors(path, arrays) if path.endswith(_SUFFIX) else write_npz(arrays))


def _read_npz(path: str) -> Arrays:
    try:
        return read_npz(path)
    except ValueError as error:
        raise streams.refused(path, f"cannot read arrays of numpy.savez: {error}") from None


def _read_safetensors(path: str) -> Arrays:
    check_package(path)
    import safetensors

    try:
        tensors = safetensors.deserialize(streams.read(path, "a file of safetensors"))
    except safetensors.SafetensorError as error:
        what = one_line(str(error))
        raise streams.refused(path, f"cannot read arrays of safetensors: {what}") from None
    arrays: Arrays = {}
    for name, tensor in tensors:
        if tensor["dtype"] not in _TYPES:
            what = f"{name} is of type {tensor['dtype']}, expected one of {', '.join(_TYPES)}"
            raise streams.refused(path, what)
        dtype = jnp.dtype(_TYPES[tensor["dtype"]])
        arrays[name] = np.frombuffer(tensor["data"], dtype).reshape(tensor["shape"])
    return arrays


def _safetensors(path: str, arrays: Arrays) -> bytes:
    """Returns the bytes of a file of safetensors. Raises InputError for an array of a type that it has not."""
    check_package(path)
    from safetensors.numpy import save

    for name, array in arrays.items():
        if array.dtype.name not in _TYPES.values():
            what = f"{name} is of type {array.dtype}, which safetensors does not have: save it as .npz"
            raise streams.refused(path, what)
    return save({name: np.asarray(array, order="C") for name, array in arrays.items()})
