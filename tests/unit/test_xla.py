"""XLA's options for GPUs: which programs get them, and what goes before them."""

from types import SimpleNamespace

import pytest

from jaxpp._xla import with_defaults

HIDING, SHARDED = "xla_gpu_enable_latency_hiding_scheduler", "xla_gpu_shard_autotuning"


def devices(*processes: int, platform: str = "gpu") -> list[SimpleNamespace]:
    return [SimpleNamespace(platform=platform, process_index=process) for process in processes]


def test_each_program_gets_what_its_devices_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "")
    assert with_defaults(devices(0), {}) == {}
    assert with_defaults(devices(1, 1), {}) == {HIDING: True}
    assert with_defaults(devices(0, 1), {}) == {HIDING: True, SHARDED: False}
    for platform in ("cpu", "tpu", "rocm"):
        assert with_defaults(devices(0, 1, platform=platform), {"a": 1}) == {"a": 1}


def test_the_user_goes_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", f"--{SHARDED}=true  --other")
    assert with_defaults(devices(0, 1), {HIDING: False, "a": 1}) == {HIDING: False, "a": 1}
    monkeypatch.delenv("XLA_FLAGS")
    assert with_defaults(devices(0, 1), {HIDING: False}) == {HIDING: False, SHARDED: False}
