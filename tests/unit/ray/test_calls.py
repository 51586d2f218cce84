"""The driver's waits for actors that are not there."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from jaxpp.runtime.processes.autopsy import ProcessState, Wait

pytest.importorskip("ray", reason="Ray is not installed")

from jaxpp.ray import calls

STATES = (
    ProcessState("process 0", "", 99.0, [Wait("a value", (1,), 99.0)]),
    ProcessState("process 1", "train.py:7, in log", 99.0),
)


def test_no_actor_is_blamed_before_all_are_heard(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that has long waited may answer before the one that it waits for."""
    told: list[str] = []

    def wait(refs: list[Any], **_: Any) -> tuple[list[Any], list[Any]]:
        told.append(capsys.readouterr().err)
        return [], refs if len(told) < 3 else []

    def alive(self: calls.Remote, _: float) -> bool:
        if self.number == 0 or len(told) == 2:
            self.heard = time.monotonic(), STATES[self.number].message()
        return True

    monkeypatch.setattr(calls, "ray", SimpleNamespace(wait=wait))
    monkeypatch.setattr(calls.Remote, "alive", alive)
    calls.Calls(60.0)._watch([(calls.Remote(number, None), number) for number in range(2)], "the step")
    assert told[:2] == ["", ""]
    assert told[2].startswith("jaxpp: process 1 is at train.py:7, in log; process 0 waits for it; ")
