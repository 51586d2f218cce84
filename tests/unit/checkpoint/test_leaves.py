"""Every kind of leaf is restored as it was saved; what can't be saved, or restored so, is refused."""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxpp
from jaxpp import checkpoint
from jaxpp.runtime.execution.arguments import DONATED
from jaxpp.runtime.processes.fetch import Handle

DTYPES = ("bool", "int8", "uint16", "int4", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64")


class Pair(NamedTuple):
    left: Any
    right: Any


def make_mesh() -> Mesh:
    return Mesh(np.array(jax.devices()).reshape(4, 2), ("mpmd", "data"))


def numbers(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def every_kind() -> dict[str, Any]:
    """A state with leaves of every kind, in nodes of every kind."""
    mesh = make_mesh()
    second = Mesh(mesh.devices[1:2], mesh.axis_names)
    parameters: Any = {
        "on one mesh": jax.device_put(numbers(4, 6), NamedSharding(second, P("data"))),
        "on all": jax.device_put(numbers(4, 6), NamedSharding(mesh, P(None, "data"))),
        "stacked": jax.device_put(numbers(4, 6), NamedSharding(mesh, P("mpmd", "data"))),
        "layers": [{"w/~": jnp.ones(3)}, (jnp.arange(3), None, []), {5: jnp.ones(2)}],
    }
    keys = jax.random.split(jax.random.key(1, impl="rbg"), 4)
    return {
        "parameters": parameters,
        "moments": optax.adamw(1e-3).init(parameters),
        "dtypes": {dtype: jnp.arange(3).astype(dtype) for dtype in DTYPES},
        "keys": [jax.random.key(3), jax.device_put(keys, NamedSharding(second, P("data"))), jax.random.PRNGKey(0)],
        "numpy": Pair(numbers(4, 6)[::2, ::3], [np.asfortranarray(numbers(2, 3)), np.float32(3), np.array(4)]),
        "numbers": [True, 3, 2.5, 1j],
        "weak": jnp.asarray(1.5),
        "empty": [jnp.zeros((0, 3), jnp.bfloat16), jax.random.split(jax.random.key(0), 0), np.zeros((2, 0))],
    }


def assert_same(found: Any, expected: Any) -> None:
    """The same tree of the same leaves in the same places."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert type(one) is type(other)
        if isinstance(other, jax.Array):
            assert (one.dtype, one.sharding, one.committed) == (other.dtype, other.sharding, other.committed)
            assert getattr(one, "weak_type", None) == getattr(other, "weak_type", None)
            if jnp.issubdtype(other.dtype, jax.dtypes.prng_key):
                one, other = jax.random.key_data(one), jax.random.key_data(other)
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other), strict=True)


def test_a_state_is_restored_as_it_was(tmp_path: Path) -> None:
    state = every_kind()
    checkpoint.save(tmp_path, 3, state)
    assert_same(checkpoint.restore(tmp_path, state), state)


def test_without_a_tree_it_becomes_dictionaries_of_numpy_arrays(tmp_path: Path) -> None:
    state = every_kind()
    checkpoint.save(tmp_path, 3, state)
    found = checkpoint.restore(tmp_path)
    assert found["numbers"] == state["numbers"]
    assert found["parameters"]["layers"][1] == [pytest.approx(np.arange(3)), None, []]
    assert type(found["moments"][0]["mu"]["stacked"]) is np.ndarray
    assert found["dtypes"]["float8_e5m2"].dtype == jnp.float8_e5m2
    assert found["empty"][0].shape == (0, 3)
    assert [str(key.dtype) for key in found["keys"]] == ["key<fry>", "key<rbg>", "uint32"]
    np.testing.assert_array_equal(found["numpy"]["left"], state["numpy"].left)
    assert_same(checkpoint.restore(tmp_path, found), found)


@jax.tree_util.register_pytree_with_keys_class
class Mixed:
    """A node with a key of a number and one of a name, as nnx has them: orbax could write it, and not read it."""

    def __init__(self, *children: Any) -> None:
        self.children = children

    def tree_flatten_with_keys(self) -> Any:
        keys = jax.tree_util.SequenceKey(0), jax.tree_util.GetAttrKey("state")
        return tuple(zip(keys, self.children, strict=True)), None

    @classmethod
    def tree_unflatten(cls, _: None, children: Any) -> "Mixed":
        return cls(*children)


def test_a_tree_that_orbax_can_not_read(tmp_path: Path) -> None:
    state = {"a": Mixed(jnp.ones(2), {}), "b": [jnp.zeros(0), 1]}
    checkpoint.save(tmp_path, 0, state)
    assert_same(checkpoint.restore(tmp_path, state), state)
    assert list(checkpoint.restore(tmp_path)) == ["a.0", "b.0", "b.1"]


@pytest.mark.parametrize("state", [np.arange(3), [np.zeros((0,))], {"": 1, "x": {"": 2}}, [1]], ids=str)
def test_odd_trees(state: Any, tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 0, state)
    assert_same(checkpoint.restore(tmp_path, state), state)
    assert repr(checkpoint.restore(tmp_path)) == repr(state)


MPMD = jaxpp.MpmdMesh(make_mesh(), "mpmd")


@pytest.mark.parametrize(
    "place",
    [
        NamedSharding(MPMD.jax_mesh, P()),
        jaxpp.MpmdSharding(MPMD, {1, 2}, P()),
        jaxpp.MpmdSharding(MPMD, set(), P()),  # of an argument that no mesh uses
        jax.sharding.SingleDeviceSharding(jax.devices()[3]),
    ],
    ids=["all", "two meshes", "no mesh", "one device"],
)
def test_a_sharding_says_where(place: Any, tmp_path: Path) -> None:
    state = {"array": numbers(4, 6), "key": jax.random.key(0), "number": 3, "empty": np.zeros((0, 4), np.float32)}
    checkpoint.save(tmp_path, 1, state)
    sharding = place.sharding if isinstance(place, jaxpp.MpmdSharding) else place
    expected = jax.device_put(state, sharding)
    assert_same(checkpoint.restore(tmp_path, dict.fromkeys(state, place)), expected)


def test_a_leaf_of_another_kind_says_as_what(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 1, {"array": jnp.ones(3), "number": 3, "scalar": jnp.float32(2)})
    like: Any = {"array": np.zeros(3, np.float32), "number": np.int8(0), "scalar": 0.0}
    expected: Any = {"array": np.ones(3, np.float32), "number": np.int8(3), "scalar": 2.0}
    assert_same(checkpoint.restore(tmp_path, like), expected)
    like = {"array": jax.ShapeDtypeStruct((3,), np.float32), "number": jnp.float32(0), "scalar": np.float32(0)}
    expected = {"array": jnp.ones(3), "number": jnp.float32(3), "scalar": np.float32(2)}
    assert_same(checkpoint.restore(tmp_path, like), expected)


class Elsewhere(Handle):
    """An array of a backend; the numbers are here all the same."""

    def __init__(self, array: jax.Array) -> None:
        self.aval, self.shape, self.dtype, self._array = jax.typeof(array), array.shape, array.dtype, array

    @property
    def sharding(self) -> NamedSharding:
        return NamedSharding(MPMD.jax_mesh, P())

    def copy_to_host_async(self) -> None: ...

    def fetch(self) -> Any:
        return self._array if jnp.issubdtype(self.dtype, jax.dtypes.prng_key) else np.asarray(self._array)


class Backend:
    platform = "cpu"

    def compile(self, *_: Any) -> Any: ...


def test_a_backend_gets_numpy_arrays(tmp_path: Path) -> None:
    """What other processes hold is fetched to be saved, and comes back to this one."""
    state = {"array": jnp.ones(3), "key": jax.random.key(0)}
    remote = {name: Elsewhere(array) for name, array in state.items()}
    checkpoint.save(tmp_path, 1, remote)
    assert_same(checkpoint.restore(tmp_path, remote), state | {"array": np.ones(3, np.float32)})
    place = jaxpp.MpmdSharding(jaxpp.MpmdMesh(MPMD.jax_mesh, "mpmd", backend=Backend()), {1}, P())
    assert_same(checkpoint.restore(tmp_path, dict.fromkeys(state, place)), state)


def test_orbax_reads_it_and_is_read(tmp_path: Path) -> None:
    state = {"layers": [jax.device_put(numbers(4, 6), NamedSharding(make_mesh(), P("mpmd")))], "n": np.arange(3)}
    checkpoint.save(tmp_path / "ours", 1, state)
    with ocp.CheckpointManager(tmp_path / "ours") as manager:
        assert manager.all_steps() == [1]
        assert_same(manager.restore(1, args=ocp.args.StandardRestore(state)), state)
    with ocp.CheckpointManager(tmp_path / "theirs") as manager:
        manager.save(1, args=ocp.args.StandardSave(state))
    assert_same(checkpoint.restore(tmp_path / "theirs", state, verify=False), state)


def donated() -> jax.Array:
    array = jnp.ones(3)
    jax.jit(jnp.negative, donate_argnums=0)(array)
    return array


@pytest.mark.parametrize(
    ("state", "error", "message"),
    [
        ({"a": [donated()]}, RuntimeError, f"`a.0` {DONATED}"),
        ({"a": "text"}, TypeError, "`a` is of type str; a checkpoint holds arrays of numbers, and numbers"),
        ({"a": 2**70}, TypeError, "`a` is of type int; a checkpoint holds arrays of numbers, and numbers"),
        ({"a": jnp.ones(2, jnp.uint4)}, TypeError, "`a` is uint4, which the file format does not have; cast it"),
        ({"a.b": 1, "a": {"b": 2}}, ValueError, "two leaves of the state have the name a.b; rename one"),
        ({"a": None}, ValueError, "the state has no leaves: there is nothing to save"),
    ],
    ids=["donated", "text", "large number", "dtype", "name", "empty"],
)
def test_what_can_not_be_saved(state: Any, error: type[Exception], message: str, tmp_path: Path) -> None:
    with pytest.raises(error) as caught:
        checkpoint.save(tmp_path, 1, state)
    assert str(caught.value) == message
    assert checkpoint.all_steps(tmp_path) == []


def test_another_model(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 7, {"a": jnp.ones((6, 2)), "b": 1, "c": 1, "d": 1, "f": 1.5, "key": jax.random.key(0)})
    like = {
        "a": np.ones((6, 3), np.float32),
        "b": jnp.ones(2),
        "c": True,
        "f": NamedSharding(make_mesh(), P("data")),
        "d": {"e": 1},
        "key": jnp.zeros(2, jnp.uint32),
    }
    with pytest.raises(ValueError, match="another model") as caught:
        checkpoint.restore(tmp_path, like)
    assert str(caught.value).splitlines() == [
        f"{tmp_path}/7 is the checkpoint of another model",
        "  d.e: not in the checkpoint",
        "  d: not in `like`, int64[] in the checkpoint",
        "  a: float32[6, 2] in the checkpoint, float32[6, 3] in `like`",
        "  b: int64[] in the checkpoint, float32[2] in `like`",
        "  c: int64[] in the checkpoint, bool[] in `like`",
        "  and 2 more",
    ]
    del like["a"], like["b"], like["d"], like["c"]
    with pytest.raises(ValueError, match="another model") as caught:
        checkpoint.restore(tmp_path, like | {"a": jnp.ones((6, 2), jnp.bfloat16), "b": 1.0, "c": 1, "d": np.uint8(1)})
    assert str(caught.value).splitlines()[1:] == [
        "  a: float32[6, 2] in the checkpoint, bfloat16[6, 2] in `like`",
        "  f: float64[] does not fit P('data',) on {'mpmd': 4, 'data': 2}",
        "  key: uint32[2] (keys of threefry2x32) in the checkpoint, uint32[2] in `like`",
    ]
