"""What was damaged on the disk is not restored, wherever it goes; what has no checksums is."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxpp import checkpoint
from jaxpp.checkpoint.checksums import checksum

MESH = Mesh(np.array(jax.devices()).reshape(4, 2), ("mpmd", "data"))


def numbers(*shape: int) -> np.ndarray[Any, Any]:
    """Integers that no compression makes smaller: they are stored as they are."""
    return np.random.default_rng(shape).integers(1 << 32, size=shape, dtype=np.uint32)


STATE = {
    "layers": [{"w/~": jax.device_put(numbers(64, 128), NamedSharding(MESH, P("mpmd", "data")))}],
    "key": jax.random.key(0),
    "numpy": numbers(2048),
    "n": 3,
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("saved")
    checkpoint.save(directory, 1, STATE)
    return directory


@pytest.fixture
def directory(saved: Path, tmp_path: Path) -> Path:
    """A copy of the checkpoint, to be damaged."""
    return Path(shutil.copytree(saved, tmp_path / "copy"))


def flip_elements(directory: Path, array: np.ndarray[Any, Any]) -> None:
    """Flip a bit of the first element of a stored block, which is too large for a node of the index."""
    wanted = array.tobytes()[:8]
    for path in directory.rglob("d/*"):
        data = bytearray(path.read_bytes())
        if (place := data.find(wanted)) >= 0:
            data[place] ^= 1
            path.write_bytes(data)
            return
    raise AssertionError("the element is stored otherwise")


def like(sharding: Any) -> Any:
    return {**STATE, "layers": [{"w/~": sharding}]}


WANTED = {
    "as it was": STATE,
    "in other shards": like(NamedSharding(MESH, P("data", "mpmd"))),
    "in larger ones": like(NamedSharding(MESH, P("data"))),
    "whole": like(NamedSharding(MESH, P())),
    "in numpy": like(numbers(64, 128)),
    "for a look": None,
}


@pytest.mark.parametrize("wanted", WANTED)
def test_a_flipped_bit_is_found(directory: Path, wanted: str) -> None:
    restored = checkpoint.restore(directory, WANTED[wanted])
    np.testing.assert_array_equal(restored["layers"][0]["w/~"], numbers(64, 128))
    flip_elements(directory, numbers(64, 128)[16:32, 64:])
    message = (
        rf"^{directory}/1 is damaged: `layers.0.w/~`\[16:32, 64:128\] is not what was saved \(CRC-32 \w{{8}}, not "
        r"\w{8}\); restore another step, or this one as it is, with verify=False$"
    )
    with pytest.raises(checkpoint.DamagedError, match=message):
        checkpoint.restore(directory, WANTED[wanted])
    found = checkpoint.restore(directory, WANTED[wanted], verify=False)["layers"][0]["w/~"]
    assert np.flatnonzero(np.asarray(found) != numbers(64, 128)).tolist() == [16 * 128 + 64]


def test_a_flipped_bit_of_a_numpy_array(directory: Path) -> None:
    flip_elements(directory, numbers(2048))
    with pytest.raises(checkpoint.DamagedError, match=r"`numpy`\[0:2048\] is not what was saved"):
        checkpoint.restore(directory, STATE)


def test_other_damage_names_the_file(directory: Path) -> None:
    folder = directory / "1" / "default"

    def shorten(text: str) -> str:
        return text[:-20]

    damages: list[tuple[str, Callable[[str], str], str]] = [
        ("_METADATA", shorten, "/_METADATA is damaged: "),
        ("_METADATA", lambda text: text.replace("fry", "fri"), "/_METADATA is damaged: it does not have the checksum"),
        ("checksums.process_0.json", shorten, "/checksums.process_0.json is damaged: "),
        ("checksums.process_0.json", lambda _: "[]", "/checksums.process_0.json is damaged: "),
        (
            "checksums.process_0.json",
            lambda _: "{}",
            "process_.*json: they lack checksums of `.*`; verify=False restores",
        ),
    ]
    for name, damage, message in damages:
        whole = (folder / name).read_text()
        (folder / name).write_text(damage(whole))
        with pytest.raises(checkpoint.DamagedError, match=message):
            checkpoint.restore(directory, STATE)
        (folder / name).write_text(whole)
    checkpoint.restore(directory, STATE)


def test_any_damage_of_the_metadata_is_found(directory: Path) -> None:
    """Also of a key, and of what makes another tree."""
    path = directory / "1" / "default" / "_METADATA"
    whole = path.read_bytes()
    for position in range(0, len(whole), 7):
        flipped = bytearray(whole)
        flipped[position] ^= 1 << position % 8
        path.write_bytes(bytes(flipped))
        with pytest.raises(checkpoint.DamagedError, match="/_METADATA is damaged: it does not have the checksum"):
            checkpoint.restore(directory, STATE)
    path.write_bytes(whole)
    path.with_name("checksums.metadata.json").unlink()  # as earlier versions wrote it
    checkpoint.restore(directory, STATE)


@pytest.mark.parametrize("what", ["cut", "missing", "empty"])
def test_a_data_file_that_is_not_whole(tmp_path: Path, what: str) -> None:
    """Orbax raises a bare Exception for an array that is read onto devices."""
    state = {"weight": jax.numpy.asarray(numbers(64, 128))}  # one leaf on one device: orbax forgets to wait for others
    checkpoint.save(tmp_path, 1, state)
    files = (tmp_path / "1" / "default" / "ocdbt.process_0" / "d").iterdir()
    values = max(files, key=lambda path: path.stat().st_size)
    whole = values.read_bytes()
    if what == "missing":
        values.unlink()
    else:
        values.write_bytes(whole[: len(whole) // 2] if what == "cut" else b"")
    for wanted in (state, None):
        with pytest.raises(checkpoint.DamagedError, match=rf"^{tmp_path}/1 is damaged or incomplete: [A-Z_]+: Error"):
            checkpoint.restore(tmp_path, wanted)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 1, {"numpy": numbers(2048)})  # one leaf: orbax forgets to wait for the others
    (tmp_path / "1" / "default" / "manifest.ocdbt").write_bytes(b"")
    with pytest.raises(checkpoint.DamagedError, match=rf"^{tmp_path}/1 is damaged or incomplete: .*manifest.ocdbt"):
        checkpoint.restore(tmp_path)


def test_without_checksums_it_is_restored_with_a_warning(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path) as manager:
        manager.save(1, args=ocp.args.StandardSave({"numpy": numbers(2048)}))
    with pytest.warns(
        UserWarning, match=f"^{tmp_path} has checkpoints without checksums: what is restored .* not check"
    ):
        checkpoint.restore(tmp_path)
    checkpoint.restore(tmp_path, verify=False)


def test_the_checksum_is_of_the_elements_in_order() -> None:
    array = numbers(4, 6)
    assert checksum(array[:, ::2]) == checksum(array[:, ::2].copy()) != checksum(array[:, 1::2])
    assert checksum(np.asfortranarray(array)) == checksum(array) == checksum(array.view(np.float32))
    assert checksum(np.array(3.0)) == checksum(np.full(1, 3.0))
