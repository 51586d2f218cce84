"""Which transport is taken, and which are refused."""

import socket
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from unit.end_to_end.compare import batch, make_mesh, sgd_step, weights

import jaxpp
from jaxpp import _jobs, distributed
from jaxpp.ir.program import Program
from jaxpp.ir.transports import RULES, OrderError, check_order
from jaxpp.runtime import load
from jaxpp.runtime.processes import choice, job
from jaxpp.runtime.processes.membership import ProcessError
from jaxpp.runtime.processes.ordered import tags_are_wanted


@pytest.fixture(autouse=True)
def nothing_given(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("JAXPP_TRANSPORT", raising=False)
    monkeypatch.setattr(choice, "_given", [])
    choice._name.cache_clear()
    yield
    choice._name.cache_clear()


@pytest.mark.parametrize(
    ("platform", "can_put", "expected"),
    [("cpu", False, "pull"), ("cpu", True, "pull"), ("gpu", True, "device_put"), ("gpu", False, "pair")],
)
def test_the_platform_chooses(platform: str, can_put: bool, expected: str) -> None:
    assert choice.name_of(platform, can_put) == expected


def test_the_user_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXPP_TRANSPORT", "pair")
    choice.choose(None)
    assert choice.name_of("gpu", can_put=True) == "pair"
    choice.choose("pull")
    assert choice.name_of("gpu", can_put=True) == "pull"


def test_what_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ProcessError, match=r"^transport is 'tcp'; give one of pull, device_put, pair$"):
        distributed.initialize(transport="tcp")
    monkeypatch.setenv("JAXPP_TRANSPORT", "tcp")
    choice._given.clear()
    with pytest.raises(ProcessError, match=r"^JAXPP_TRANSPORT is 'tcp'; give one of pull, device_put, pair$"):
        distributed.initialize()


def test_a_port_that_was_found_free_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX listens at it later, for `device_put`; it takes no port 0."""
    told = Mock()
    monkeypatch.setattr("jax.config.update", told)
    monkeypatch.setattr(_jobs, "wanted_platforms", lambda: ["cpu"])
    monkeypatch.setattr(choice, "_kept", [])
    for _ in range(2):
        choice.choose("device_put")
        port = int(told.call_args_list[-2].args[1].rpartition(":")[2])
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
    for kept in choice._kept:
        kept.close()


def test_device_put_is_refused_where_jax_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXPP_TRANSPORT", "device_put")
    begin = "the transport 'device_put' does not work here: jax.device_put reaches no device of another process on"
    with pytest.raises(ProcessError) as error:
        choice.name_of("gpu", can_put=False)
    assert str(error.value) == f"{begin} gpu; take 'pair'"
    with pytest.raises(ProcessError) as error:
        choice.name_of("cpu", can_put=False)
    remedy = "choose it by jaxpp.distributed.initialize, with JAX_PLATFORMS=cpu, so that JAX starts with it"
    assert str(error.value) == f"{begin} cpu; {remedy}; or take 'pair'"


def test_cpus_are_given_an_address_before_jax_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, str] = {}
    monkeypatch.setattr("jax.config.update", given.__setitem__)
    for platform in ("cuda", "cpu"):
        assert not given
        monkeypatch.setattr(_jobs, "wanted_platforms", lambda platform=platform: [platform])
        choice.choose("device_put")
    address, transport_addresses = given.values()
    assert address.startswith("127.0.0.1:")
    assert not address.endswith(":0")
    assert transport_addresses == "127.0.0.1:0,127.0.0.1:0"


def test_an_address_that_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_jobs, "wanted_platforms", lambda: ["cpu"])
    monkeypatch.setenv("JAXPP_TRANSFER_ADDRESS", "192.0.2.1")
    with pytest.raises(ProcessError, match=r"^JAXPP_TRANSFER_ADDRESS is '192.0.2.1', no address of this host \("):
        choice.choose("device_put")


def test_tags_are_wanted_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, wanted in (("", False), ("0", False), ("1", True)):
        monkeypatch.setenv("JAXPP_CHECK_TRANSFERS", value)
        assert tags_are_wanted() == wanted
    monkeypatch.setenv("JAXPP_CHECK_TRANSFERS", "off")
    with pytest.raises(ProcessError, match=r"^JAXPP_CHECK_TRANSFERS is 'off'; give 1, or 0$"):
        tags_are_wanted()


def test_on_cpus_device_put_needs_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "transport", lambda: SimpleNamespace(counts_all=True))
    monkeypatch.setattr("jax.process_count", lambda: 3)
    devices = np.array([SimpleNamespace(process_index=process) for process in (0, 2)])
    with pytest.raises(ProcessError) as error:
        job.peers([SimpleNamespace(devices=devices)], str)  # pyright: ignore[reportArgumentType]  # all it reads
    assert str(error.value) == (
        "on CPUs the transport 'device_put' needs all 3 processes of the job, the step is on processes 0, 2: "
        "take 'pair', or 'pull'"
    )


def test_programs_are_ordered_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program for meshes of several processes, of which the mesh itself knows nothing."""
    step = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule="zb-h1"), make_mesh(4))
    orders: list[set[str]] = []
    for several in (False, True):
        monkeypatch.setenv("JAXPP_TRANSPORT", "pair")
        if several:
            monkeypatch.setattr(choice, "_processes", Mock(return_value=[0, 1]))
        program = load(step.lower(weights(4), batch(8)).program().module)
        orders.append({name for name in RULES if is_ordered_for(program, name)})
    assert orders == [{"pull"}, {*RULES}]


def is_ordered_for(program: Program, transport: str) -> bool:
    try:
        check_order(program, transport)
    except OrderError:
        return False
    return True
