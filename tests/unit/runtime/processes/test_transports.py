"""Every transport carries every value, ends waits for what won't come, and programs give the same by each."""

import re
import signal

import pytest
from unit.runtime.processes import conformance, test_faults

TRANSPORTS = ("pull", "device_put", "pair")
DIED = r"mesh 1 on process 1 \(\S+, pid \d+\) {}; mesh 0 waited for receive on channel 7 from process 1"
WHERE = "mesh 0: receive on channel 7 from process 1: "


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("JAXPP_TRANSPORT", request.param)
    monkeypatch.setenv("JAXPP_WATCHDOG_SECONDS", "2")
    return request.param


def run(job: str, survivors: list[int], devices: int) -> test_faults.Outcome:
    return test_faults.run(job, 2, devices=devices, survivors=survivors, main=f"{conformance.__name__}:main")


def test_values_programs_and_a_peer_that_dies(transport: str) -> None:
    found = run("one_is_killed", [0], devices=2)
    assert found.codes == [0, -signal.SIGKILL], found.shown
    test_faults.check_loss(found, 1, {0: DIED.format("died")})
    said = "jaxpp: values go from process to process by"
    assert (f"{said} {transport}\n" in found.texts[0]) == (transport != "pull")
    assert said not in found.texts[1]


def test_transfers_that_fail_or_come_in_another_order(transport: str) -> None:
    found = run("wrong_order_and_values", [0, 1], devices=1)
    assert found.codes == [0, 0], found.shown
    sender, receiver = found.find(1, "message"), found.find(0, "message")
    if transport == "pull":
        assert found.find(1, "found") == [[[0] * 4, [1] * 4]]
        assert (sender, receiver) == ([], [f"{WHERE}the disk is full"])
        return
    chosen, order, own, again = sender
    lines = f"  process 0: transport {transport}\n  process 1: transport {transport} with tags"
    assert chosen == receiver.pop(0) == f"process 1 runs another program than process 0, from line 4 on:\n{lines}"
    another = r"another transfer came, of tag \[\d+, \d+\] and not \[\d+, \d+\]"
    where = "mesh 1: receive on channel 7 from process 0: "
    assert re.fullmatch(f"{where}{another}: the two processes send in different orders", order)
    assert re.fullmatch(r"process 1 failed: \w+: .*the disk is full", own)
    assert receiver[0] == f"{WHERE}{own}"
    not_made = r"transfers are matched by their order, and one was not made \(.*the disk is full\)"
    assert re.fullmatch(f"{not_made}: start the job again from a checkpoint", again)
    assert re.fullmatch(f"waiting for process 1: process 1 failed: {not_made}", receiver[1])


def test_a_peer_that_sends_less_than_it_should(transport: str) -> None:
    found = run("another_size", [0, 1], devices=1)
    assert found.codes == [0, 0], found.shown
    (message,) = found.find(0, "message")
    reasons = ["16 bytes came, 32 were expected"]
    if transport == "device_put":  # whichever comes first: the tag, or JAX's own error
        reasons.append("Async transfer object was deleted before transfers completed.")
    assert message.endswith(tuple(f": {reason}" for reason in reasons))


def test_steps_that_fail_and_a_peer_that_freezes(transport: str) -> None:
    found = run("one_is_stopped", [0], devices=1)
    *abandoned, told, frozen = found.find(0, "message")
    cause = "one was not made (process 1 failed: OSError: the disk is full)"
    expected = f"transfers are matched by their order, and {cause}"
    is_ordered = transport != "pull"
    assert found.find(1, "message") == [f"{expected}: start the job again from a checkpoint"] * is_ordered
    assert abandoned == [f"waiting for process 1: process 1 failed: {expected}"] * is_ordered
    assert told == f"{WHERE}process 1 failed: OSError: the disk is full"
    assert re.fullmatch(DIED.format("is frozen: it gave no sign of life for 2 s"), frozen)
    assert found.codes[0] == 0, found.shown
    assert found.find(0, "at")[1] - found.find(1, "hit")[0] - 2 < test_faults.together.SOON


def test_four_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXPP_TRANSPORT", "device_put")
    monkeypatch.setenv("RANDOM_PROGRAMS", "1")
    found = test_faults.run("programs_and_a_step", 4, survivors=range(4), main=f"{conformance.__name__}:main")
    assert found.codes == [0] * 4, found.shown
