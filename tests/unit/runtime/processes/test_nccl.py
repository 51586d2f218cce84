"""Channels of NCCL, by a library that stands in for it: what stands still, what fails, and what is not there."""

import ctypes
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import jax
import numpy as np
import pytest
from unit.runtime.processes import fake_nccl

from jaxpp.runtime.processes import nccl, nccl_library
from jaxpp.runtime.processes.nccl_library import Communicator, NcclError


def until(happens: Callable[[], bool]) -> bool:
    """Whether it happens within seconds."""
    end = time.monotonic() + 20
    while not happens() and time.monotonic() < end:
        time.sleep(1e-3)
    return happens()


@pytest.fixture
def ends() -> Iterator[tuple[Communicator, Communicator]]:
    """Both ends of one direction, the sender first."""
    library = fake_nccl.find("cpu")
    identity = library.unique_id()
    made = Communicator(library, 0, identity, 0), Communicator(library, 0, identity, 1)
    assert all(until(each.is_idle) for each in made)
    yield made
    for each in made:
        each.abort()


def move(function: Callable[[int, int], None], buffer: np.ndarray[Any, Any]) -> None:
    function(buffer.ctypes.data, buffer.nbytes)


def test_values_come_in_the_order_in_which_they_are_sent(ends: tuple[Communicator, Communicator]) -> None:
    sender, receiver = ends
    sent, found = np.arange(6, dtype="i4").reshape(2, 3), np.zeros((2, 3), "i4")
    for row in sent:
        move(sender.send, row)
        assert until(sender.is_idle)
    mark = sender.mark()
    for row in found:
        assert not sender.has_passed(mark), "a send waits for its receive"
        move(receiver.receive, row)
        assert until(receiver.is_idle)
    end = receiver.mark()
    assert until(lambda: receiver.has_passed(end))
    assert until(lambda: sender.has_passed(mark))
    np.testing.assert_array_equal(found, sent)


def test_two_that_only_send_stand_still_until_they_are_aborted(ends: tuple[Communicator, Communicator]) -> None:
    buffer = np.zeros(3, "i4")
    for each in ends:
        move(each.send, buffer)
        assert until(each.is_idle)
    marks = [each.mark() for each in ends]
    time.sleep(0.05)
    for each, mark in zip(ends, marks, strict=True):
        assert not each.has_passed(mark)
    for each, mark in zip(ends, marks, strict=True):
        each.abort()
        assert until(mark.is_passed)
        with pytest.raises(NcclError, match=r"^the communicator was aborted$"):
            each.has_passed(mark)
        with pytest.raises(NcclError, match=r"^the communicator was aborted$"):
            move(each.send, buffer)


def test_an_array_that_cannot_arrive_is_an_error(ends: tuple[Communicator, Communicator]) -> None:
    sender, receiver = ends
    move(sender.send, np.zeros(3, "i4"))
    move(receiver.receive, np.zeros(2, "i4"))
    arriving = nccl._Arriving(None, None, None, receiver, receiver.mark())
    assert until(arriving.is_ready)
    assert not arriving.has_arrived
    expected = r"^ncclCommGetAsyncError: error 6, of the network or the other end$"
    with pytest.raises(NcclError, match=expected):
        arriving.block_until_ready()


def test_a_call_before_the_last_one_has_done_its_part_is_refused(ends: tuple[Communicator, Communicator]) -> None:
    sender, _ = ends
    move(sender.send, np.zeros(3, "i4"))
    with pytest.raises(NcclError, match=r"^ncclSend: error 5, an invalid use$"):
        move(sender.send, np.zeros(3, "i4"))


def test_arrays_to_receive_into_have_memory_of_their_own() -> None:
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    make = nccl._maker((256,), np.dtype("float32"), sharding)
    made = [make().block_until_ready() for _ in range(3)]
    assert len({each.unsafe_buffer_pointer() for each in made}) == 3
    assert make is nccl._maker((256,), np.dtype("float32"), sharding)


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NcclError, match=r"^it is for GPUs, not for tpu$"):
        nccl_library.find("tpu")
    monkeypatch.setattr(ctypes, "CDLL", Mock(return_value=SimpleNamespace(_name="libnccl.so.2")))
    with pytest.raises(NcclError, match=r"^there is no ncclGetUniqueId in libnccl\.so\.2, which is too old$"):
        nccl_library.find("gpu")


def test_libraries_are_also_found_in_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def load(place: str) -> str:
        tried.append(place)
        if place.endswith("lib/libnccl.so.2"):
            return place
        raise OSError("not found")

    monkeypatch.setattr(ctypes, "CDLL", load)
    spec = SimpleNamespace(submodule_search_locations=["/site/nvidia/nccl"])
    monkeypatch.setattr("importlib.util.find_spec", {"nvidia.nccl": spec, "absent": None}.get)
    assert nccl_library._open("libnccl.so.2", "nvidia.nccl") == "/site/nvidia/nccl/lib/libnccl.so.2"
    assert tried == ["libnccl.so.2", "/site/nvidia/nccl/lib/libnccl.so.2"]
    with pytest.raises(NcclError, match=r"^there is no libnccl\.so\.3, which comes with jax\[cuda13\]$"):
        nccl_library._open("libnccl.so.3", "absent")
    with pytest.raises(NcclError, match=r"^there is no libcuda\.so\.1$"):
        nccl_library._open("libcuda.so.1")
