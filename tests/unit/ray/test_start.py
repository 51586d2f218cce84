"""Before a cluster stands, and when it ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import jaxpp

ray = pytest.importorskip("ray", reason="Ray is not installed")

TESTS = Path(__file__).parents[2]


def test_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[:2] == ["jaxpp", "ray"]]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ModuleNotFoundError, match=r"jaxpp.ray needs Ray: pip install 'jaxpp\[ray\]'"):
        __import__("jaxpp.ray")


def test_a_ray_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "__version__", "2.4.0")
    with pytest.raises(ImportError, match=r"jaxpp.ray needs Ray 2.\d+ or newer, found 2.4.0: pip install --upgrade"):
        jaxpp.ray.Cluster(2)


def test_what_can_be_no_cluster() -> None:
    with pytest.raises(ValueError, match="platform 'gpu': expected one of cpu, cuda"):
        jaxpp.ray.Cluster(2, platform="gpu")
    with pytest.raises(ValueError, match="a cluster of 0 actors with 1 devices: both must be at least 1"):
        jaxpp.ray.Cluster(0)


def test_ctrl_c_in_the_driver_ends_everything() -> None:
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    forced = "--xla_force_host_platform_device_count=8"  # for the driver; each of its actors has one device
    command = [sys.executable, "-m", "unit.ray.driver"]
    environment = {**os.environ, "PYTHONPATH": path, "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} {forced}"}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stdout is not None
        try:
            actors = list(map(int, driver.stdout.readline().split()))
            assert len(actors) == 2
            started = [pid for pid in processes() if is_below(pid, driver.pid)]
            assert set(actors) < set(started), "and Ray's own"
            driver.send_signal(signal.SIGINT)
            begin = time.monotonic()
            _, errors = driver.communicate(timeout=100)
            assert "KeyboardInterrupt" in errors
            while any(Path(f"/proc/{pid}").exists() for pid in started) and time.monotonic() < begin + 100:
                time.sleep(0.1)
            assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]
        finally:
            driver.kill()


def processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]


def is_below(process: int, ancestor: int) -> bool:
    """Whether a process was started by another, or by one that it started."""
    while process > 1:
        try:
            stat = Path(f"/proc/{process}/stat").read_text()
        except OSError:
            return False
        process = int(stat.rsplit(")", 1)[1].split()[1])
        if process == ancestor:
            return True
    return False
