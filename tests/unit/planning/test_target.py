"""Targets: which there are, and what is refused."""

from importlib.util import find_spec
from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental import topologies

import jaxpp
from jaxpp import _absent
from jaxpp.planning import CHIPS
from jaxpp.targets.target import target_of


def test_devices_that_count_as_absent() -> None:
    made = jaxpp.target("cpu", devices=4)
    assert made is jaxpp.target("CPU", devices=4)
    assert repr(made) == "Target(cpu x 4: 4 devices)"
    mesh = made.mesh((2, 2), ("mpmd", "data"))
    assert not mesh.is_present
    assert target_of(mesh.jax_mesh) is made
    assert not any(map(_absent.is_present, made.devices))
    here = jaxpp.MpmdMesh(jax.make_mesh((2,), ("mpmd",)), "mpmd")
    assert here.is_present
    with pytest.raises(jaxpp.PlanError, match=r"not those of one target; take them from jaxpp.target\(\.\.\.\)"):
        target_of(here.jax_mesh)


@pytest.mark.parametrize(
    ("name", "options", "devices", "hosts"),
    [
        ("h100", {"nodes": 2, "gpus": 4}, 8, 2),
        ("v5p:2x2x2", {}, 8, 2),
        ("v5e:4x4", {}, 16, 4),
        ("tpu7x:2x2x2", {}, 16, 2),
    ],
)
def test_a_compiler_stands_in(name: str, options: dict[str, int], devices: int, hosts: int) -> None:
    """The devices are CPUs of their own, on as many hosts as the chips; they do not mix with other CPUs."""
    made = jaxpp.target(name, **options, stand_in=True)
    assert made is jaxpp.target(name, **options, stand_in=True)
    assert (len(made.devices), made.platform, made.chip.name) == (devices, "cpu", name.partition(":")[0])
    found = [made.host_of(device) for device in made.devices]
    assert found == sorted(found)
    assert (set(found), {found.count(host) for host in found}) == (set(range(hosts)), {devices // hosts})
    assert made.name == (name if ":" in name else "h100 x 2 x 4")
    cpus = jaxpp.target("cpu", devices=devices)
    assert cpus is jaxpp.target("cpu", devices=devices, stand_in=True)
    assert [target_of(each.mesh((devices,), ("mpmd",)).jax_mesh) for each in (made, cpus)] == [made, cpus]


def test_a_topology_without_chips() -> None:
    with pytest.raises(jaxpp.PlanError, match=r"^target: '0x2x2' is no topology of TPUs"):
        jaxpp.target("v5p:0x2x2", stand_in=True)


def test_meshes_of_two_sizes() -> None:
    devices = jaxpp.target("cpu", devices=4).devices
    small, large = (jax.sharding.Mesh([[*each]], ("mpmd", "data")) for each in (devices[:1], devices[1:3]))
    mesh = jaxpp.MpmdMesh.of([small, large])
    assert not mesh.is_present


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("v5x:2x2", {}, r"^target: no chip 'v5x' is known \(did you mean 'v5p'\?\); there are v4, v5e, .*, cpu$"),
        ("", {}, r"^target: no chip '' is known; there are"),
        ("v5p-64", {}, "^target: 'v5p-64' is a slice of a cloud: name its topology, 'v5p:2x4x4'$"),
        ("v5p-8", {}, "^target: 'v5p-8' is a slice of a cloud: name its topology, 'v5p:2x2x1'$"),
        ("v5litepod-8", {}, "^target: 'v5litepod-8' is a slice of a cloud: name its topology, 'v5e:2x4'$"),
        ("v5p-65", {}, r"^target: no chip 'v5p-65' is known \(did you mean 'v5p'\?\)"),
        ("v5p", {}, r"^target: a TPU is named with its topology alone: target\('v5p:2x2x1'\)$"),
        ("v5p:4x4x4", {"gpus": 8}, r"^target: a TPU is named with its topology alone"),
        ("v5p:4x4x4", {"nodes": 2}, r"^target: a TPU is named with its topology alone"),
        ("v5p:many", {}, r"^target: 'many' is no topology of TPUs, such as 2x2x1"),
        ("h200:2x2", {}, r"^target: GPUs are named with their numbers: target\('h200', nodes=2, gpus=8\)$"),
        ("h200", {"devices": 8}, r"^target: GPUs are named with their numbers"),
        ("h200", {"nodes": 0}, r"^target: nodes is 0, expected a positive whole number$"),
        ("cpu", {"devices": "4"}, r"^target: devices is '4', expected a positive whole number$"),
        ("cpu", {"nodes": 2, "devices": 8}, r"^target: CPUs are named with their number"),
        ("cpu", {"gpus": 4}, r"^target: CPUs are named with their number: target\('cpu', devices=8\)$"),
    ],
)
def test_what_is_no_target(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(jaxpp.PlanError, match=message):
        jaxpp.target(name, **options)


def test_too_few_devices() -> None:
    with pytest.raises(jaxpp.PlanError, match=r"^cpu x 4 has 4 devices, a mesh of \(3, 2\) takes 6$"):
        jaxpp.target("cpu", devices=4).mesh((3, 2), ("mpmd", "data"))


@pytest.mark.parametrize(
    ("sizes", "names", "message"),
    [
        ((-2,), ("mpmd",), r"^mesh: an axis of \(-2,\) has size -2, expected positive whole numbers$"),
        ((0,), ("mpmd",), "has size 0, expected"),
        (("a",), ("mpmd",), "has size 'a', expected"),
        (2, ("mpmd",), r"^mesh: sizes of axes must be a tuple, such as \(4, 2\), found 2$"),
        ((4,), "mpmd", r"^mesh: names of axes must be a tuple, such as \('mpmd', 'data'\), found 'mpmd'$"),
        ((4,), (1,), "^mesh: an axis is named 1, expected a string such as 'data'$"),
        (np.array(4), ("mpmd",), r"^mesh: sizes of axes must be a tuple, such as \(4, 2\), found array\(4\)$"),
        ((2,), ("mpmd", "data"), "^mesh: 1 sizes for 2 axes, expected one for each$"),
    ],
)
def test_sizes_that_are_none(sizes: Any, names: Any, message: str) -> None:
    with pytest.raises(jaxpp.PlanError, match=message):
        jaxpp.target("cpu", devices=4).mesh(sizes, names)


def test_an_option_that_no_mesh_has() -> None:
    with pytest.raises(jaxpp.PlanError, match=r"^mesh: JAX makes no mesh of these options: .*'foo'"):
        jaxpp.target("cpu", devices=4).mesh((4,), ("mpmd",), foo=3)


def test_sizes_in_an_array() -> None:
    mesh: Any = jaxpp.target("cpu", devices=4).mesh
    assert repr(mesh(np.array([2, 2]), ["mpmd", "x"])) == "MpmdMesh(mpmd=2 of (x=2), cpu)"


@pytest.mark.parametrize("said", ["", "no colon", "INVALID_ARGUMENT: no such: topology"])
def test_what_the_compiler_says_of_a_topology(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise jax.errors.JaxRuntimeError(said)

    monkeypatch.setattr(topologies, "get_topology_desc", refuse)
    reason = said.removeprefix("INVALID_ARGUMENT: ") or "no reason given"
    with pytest.raises(jaxpp.PlanError, match=f"^target: there is no v5p:9x9x9: {reason}$"):
        jaxpp.target("v5p:9x9x9")


@pytest.mark.skipif(find_spec("libtpu") is not None, reason="libtpu is installed")
def test_without_the_compiler_for_tpus() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"^target 'v5p' needs libtpu: pip install 'jaxpp\[tpu-plan\]'$"):
        jaxpp.target("v5p:2x2x1")


@pytest.mark.skipif(find_spec("jax_plugins") is not None, reason="a plugin is installed")
def test_without_the_compiler_for_gpus() -> None:
    with pytest.raises(
        ModuleNotFoundError, match=r"^target 'h200' needs the CUDA .*: pip install 'jaxpp\[gpu-plan\]'$"
    ):
        jaxpp.target("h200")


def test_facts_have_sources() -> None:
    for name, chip in CHIPS.items():
        assert (chip.name, len(chip.sources) > 0) == (name, True)
        assert min(chip.flops["f32"], chip.memory_bytes, chip.memory_bandwidth, chip.inside.bandwidth) > 0
    assert CHIPS["v5p"].peak("bf16") == 459e12
    assert CHIPS["h200"].peak("i1") == CHIPS["h200"].flops["f32"]
