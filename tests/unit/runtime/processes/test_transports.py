"""Every transport carries every value, ends waits for what won't come, and programs give the same by each."""

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
    assert (f"{said} {transport} (JAXPP_TRANSPORT)" in found.texts[0]) == (transport != "pull")
    assert said not in found.texts[1]
