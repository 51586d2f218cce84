"""Files of named arrays, whole and damaged."""

import random
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors

from jaxpp.tools import arrays
from jaxpp.tools.streams import InputError

ARRAYS = {
    "arg0": np.arange(12, dtype=np.float32).reshape(3, 4).T,
    "arg1": np.ones((0, 2), jnp.bfloat16),
    "arg2": np.array(-3),
}


def refusal(path: Path) -> str:
    """The message of the error for this file."""
    with pytest.raises(InputError) as caught:
        arrays.read_arrays(str(path))
    return str(caught.value)


def test_each_type_of_safetensors_goes_there_and_back(tmp_path: Path) -> None:
    path = str(tmp_path / "x.safetensors")
    types = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 bfloat16 float16 float32 float64 complex64".split()
    types += "float8_e4m3fn float8_e5m2 float8_e8m0fnu float8_e4m3fnuz float8_e5m2fnuz".split()
    given = ARRAYS | {name: np.array([0.5, 1, 2]).astype(jnp.dtype(name)) for name in types}
    arrays.write_arrays(path, given)
    found = arrays.read_arrays(path)
    assert found.keys() == given.keys()
    for name, array in found.items():
        assert (array.dtype, array.shape) == (given[name].dtype, given[name].shape)
        np.testing.assert_array_equal(array, given[name])


def test_types_that_safetensors_does_not_have(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    with pytest.raises(InputError) as caught:
        arrays.write_arrays(str(path), {"result0": np.zeros(2, np.complex128)})
    expected = "result0 is of type complex128, which safetensors does not have: save it as .npz"
    assert str(caught.value) == f"{path}: error: {expected}"
    buffer = np.zeros(1, np.uint8)
    spec = safetensors.TensorSpec(dtype="float4_e2m1fn_x2", shape=[1], data_ptr=buffer.ctypes.data, data_len=1)
    path.write_bytes(safetensors.serialize({"x": spec}))
    assert refusal(path).startswith(f"{path}: error: x is of type F4, expected one of BOOL, ")


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_damaged_files_are_one_line(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"x.{suffix}"
    arrays.write_arrays(str(path), ARRAYS)
    data, generator, messages = path.read_bytes(), random.Random(0), list[str]()
    for _ in range(200):
        damaged = bytearray(data)
        for _ in range(generator.choice((1, 3, 10))):
            damaged[generator.randrange(len(data))] = generator.randrange(256)
        path.write_bytes(damaged[: generator.randrange(1, len(data)) if generator.random() < 0.1 else None])
        try:
            arrays.read_arrays(str(path))
        except InputError as error:
            messages.append(str(error))
    assert 100 < len(messages) < 200
    assert all(each.startswith(f"{path}: error: ") and "\n" not in each for each in messages)
    path.write_bytes(b"")
    assert ": error: " in refusal(path)
    path.unlink()
    assert "No such file or directory" in refusal(path)


def test_without_safetensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "find_spec", dict[str, object]().get)
    path = str(tmp_path / "x.safetensors")
    message = f"{path}: error: this needs safetensors: pip install 'jaxpp[safetensors]'"
    assert refusal(Path(path)) == message
    with pytest.raises(InputError) as caught:
        arrays.check_package(path)
    assert str(caught.value) == message
    arrays.check_package("x.npz")
