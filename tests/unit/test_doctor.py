"""`python -m jaxpp doctor` on a healthy host, and each problem with its remedy."""

import errno
import json
import os
import re
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from jaxpp import __main__, _versions
from jaxpp.doctor import checks, finding, host, packages, probing
from jaxpp.doctor.finding import NOTE, OK, PROBLEM, Finding

ROOT = Path(__file__).parents[2]
DEVICES = {
    "wrong": [],
    "transports": ["pull", "pair"],
    "default": "cpu",
    "platforms": {"cpu": [1, "cpu"]},
    "warnings": [],
}
CARRIED = {"seconds": 0.01, "descriptors": 30}


@pytest.fixture
def free() -> str:
    """An address at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of stand-ins for the probes: `NAME.py`, with the arguments of the probe in `sys.argv`."""
    start = "import runpy, sys; path = f'{sys.argv.pop(1)}/{sys.argv[1]}.py'; runpy.run_path(path)"
    monkeypatch.setattr(probing, "PROBES", ("-c", start, str(tmp_path)))
    told(tmp_path, "resolve", {"address": "127.0.0.1"})
    told(tmp_path, "devices", DEVICES)
    told(tmp_path, "transport", CARRIED)
    return tmp_path


def told(folder: Path, probe: str, result: Mapping[str, object], rest: str = "") -> None:
    """A stand-in that tells these results, and then runs `rest`."""
    (folder / f"{probe}.py").write_text(f"import os, sys, time\nprint({json.dumps(result)!r}, flush=True)\n{rest}\n")


def test_a_healthy_host(free: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Every check is made, and all transports carry values."""
    assert __main__.main(["doctor", "--json", "--coordinator", free, "--seconds", "300"]) == 0
    printed = json.loads(capfd.readouterr().out)
    assert printed["healthy"]
    found = {each["name"]: each for each in printed["checks"]}
    assert {*found} >= {"python", "jaxpp", "numpy", "jax", "jaxlib", "extras", "descriptors", "clock", "tested with"}
    assert {name for name, each in found.items() if each["status"] != OK} <= {"clock", "shared memory"}
    assert found["devices"]["found"] == "8 of cpu (cpu), the default"
    assert found["loopback"]["found"] == "connects at 127.0.0.1"
    assert found["coordinator"]["found"] == f"{free} is free"
    for name in ("pull", "device_put", "pair"):
        line = found[f"transport {name}"]["found"]
        carried = re.fullmatch(
            r"two processes exchange 1 MB on cpu in [\d.]+ s, with (\d+) file descriptors each", line
        )
        assert carried, line
        assert int(carried[1]) <= host.DESCRIPTORS + host.DESCRIPTORS_PER_PEER


def test_lines_for_people_say_the_same(probes: Path, free: str, capsys: pytest.CaptureFixture[str]) -> None:
    told(probes, "transport", CARRIED, "if sys.argv[2] == 'pair': sys.exit('no such network')")
    assert __main__.main(["doctor", "--coordinator", free]) == 1
    lines = capsys.readouterr().out.splitlines()
    carried = "two processes exchange 1 MB on cpu in 0.010 s, with 30 file descriptors each"
    assert f"ok       transport pull       {carried}" in lines
    where = lines.index(
        "problem  transport pair       process 0: ended by exit code 1, while it starts Python: no such network; "
        "process 1: ended by exit code 1, while it starts Python: no such network"
    )
    remedy = "choose another transport, which works here: JAXPP_TRANSPORT, or jaxpp.distributed.initialize"
    assert lines[where + 1] == f"         remedy               {remedy}"
    assert __main__.main(["doctor", "--json", "--coordinator", free]) == 1
    as_data = [Finding(**each) for each in json.loads(capsys.readouterr().out)["checks"]]
    names = {each.name for each in as_data}
    assert names == {each.name for each in checks.examine(free)}
    assert {line[9:30].strip() for line in lines} - {"remedy"} == {name[:21] for name in names}


def test_it_starts_without_jax() -> None:
    """JAX may be what does not work."""
    program = "import jaxpp.__main__, sys; print({'jax', 'jaxlib', 'numpy'} & {*sys.modules})"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "set()\n"


# Versions


def versions(monkeypatch: pytest.MonkeyPatch, **found: str | None) -> None:
    """Lets packages have these versions; None for one that is not installed."""
    real = metadata.version

    def version(name: str) -> str:
        if name not in found:
            return real(name)
        if (given := found[name]) is None:
            raise metadata.PackageNotFoundError(name)
        return given

    monkeypatch.setattr(metadata, "version", version)


def requirements(monkeypatch: pytest.MonkeyPatch, **of: list[str]) -> None:
    """Lets packages need these packages, and all other packages none."""

    def requires(name: str) -> list[str]:
        return of.get(name, [])

    monkeypatch.setattr(metadata, "requires", requires)


def only(found: Iterator[Finding], name: str) -> Finding:
    (finding,) = [each for each in found if each.name == name]
    return finding


def test_an_old_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    versions(monkeypatch, jax="0.9.2")
    assert only(packages.check_jax(), "jax") == Finding(
        "jax",
        "0.9.2 is older than 0.10.2, the oldest that jaxpp works with",
        PROBLEM,
        "pip install 'jax>=0.10.2,<=0.12.0.1'",
    )


@pytest.mark.parametrize(
    ("version", "status", "text", "remedy"),
    [
        ("0.10.2", OK, "0.10.2", ""),
        ("0.11.0", OK, "0.11.0, between 0.10.2 and 0.12.0.1", ""),
        (
            "0.13.0.dev20270101",
            NOTE,
            "0.13.0.dev20270101 is newer than 0.12.0.1, the newest that was tested",
            "if something fails: pip install 'jax<=0.12.0.1'",
        ),
    ],
)
def test_other_versions_of_jax(
    monkeypatch: pytest.MonkeyPatch, version: str, status: str, text: str, remedy: str
) -> None:
    versions(monkeypatch, jax=version)
    assert only(packages.check_jax(), "jax") == Finding("jax", text, status, remedy)


def test_a_jaxlib_that_does_not_go_with_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    versions(monkeypatch, jax="0.11.2", jaxlib="0.4.1")
    needs = ["jaxlib<=0.11.2,>=0.11.2", "numpy>=2.0", 'jax-cuda13-plugin<=0.11.2; extra == "cuda13"']
    requirements(monkeypatch, jax=needs)
    found = only(packages.check_jax(), "jaxlib")
    needed = "0.4.1, jax 0.11.2 needs <=0.11.2,>=0.11.2"
    assert found == Finding("jaxlib", needed, PROBLEM, "pip install 'jax==0.11.2'")
    versions(monkeypatch, jax="0.11.2", jaxlib=None)
    found = only(packages.check_jax(), "jaxlib")
    assert found == Finding("jaxlib", "not installed", PROBLEM, "pip install 'jax==0.11.2'")


def test_packages_that_are_missing_or_old(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = ["jax>=0.10.2", "numpy", "scipy>=1.9,<9", 'ray>=2.53; extra == "ray"', 'jax[tpu]; extra == "tpu-plan"']
    requirements(monkeypatch, jaxpp=needs, jax=['libtpu; extra == "tpu"'])
    versions(monkeypatch, jax=None, numpy="2.1", scipy="1.8.9", ray="2.6.0", libtpu=None)
    found = list(packages.check_jaxpp())[1:]
    assert found == [
        Finding("jax", "not installed", PROBLEM, "pip install 'jax>=0.10.2'"),
        Finding("numpy", "2.1"),
        Finding("scipy", "1.8.9, jaxpp needs >=1.9,<9", PROBLEM, "pip install 'scipy>=1.9,<9'"),
    ]
    assert list(packages.check_extras()) == [
        Finding("extras", "ray; not installed: tpu-plan"),
        Finding("ray", "2.6.0, jaxpp needs >=2.53", PROBLEM, "pip install 'ray>=2.53'"),
    ]
    versions(monkeypatch, jax="0.10.2", ray="2.53.0", libtpu="1")
    assert list(packages.check_extras()) == [Finding("extras", "ray, tpu-plan; not installed: none")]


def test_a_jaxpp_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", missing)
    (found,) = packages.check_jaxpp()
    assert found.status == NOTE
    assert found.found.endswith(", which pip did not install")
    assert found.remedy == "pip install PATH, with the path of the folder that has pyproject.toml"


def test_a_python_that_is_newer_than_those_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.python_version", lambda: "3.99.1")
    (found,) = packages.check_python()
    assert found == Finding("python", "3.99.1 is newer than 3.13, the newest that was tested", NOTE, "take 3.13")


def test_the_tested_versions_have_one_place() -> None:
    """Pip's lower bound, the README and the page of tests say what `_versions.py` says."""
    needed = [each for each in packages._requirements("jaxpp") if each.name == "jax" and not each.extra]
    tried, pythons = _versions.TRIED, [*_versions.TESTED.values()]
    assert [each.versions for each in needed] == [f">={tried[0]}"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"| Python {pythons[0]} to {pythons[-1]}, JAX {tried[0]} to {tried[-1]} |" in readme
    page = (ROOT / "docs" / "tested.md").read_text(encoding="utf-8")
    assert dict(re.findall(r"^\| (0[.\d]+) \| (3\.\d+) \|", page, re.MULTILINE)) == _versions.TESTED


# This host


def test_too_few_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    for hard, above in ((4096, ""), (200, "; root must allow more than 200 first"), (resource.RLIM_INFINITY, "")):
        monkeypatch.setattr(resource, "getrlimit", returning((200, hard)))
        (found,) = host.check_descriptors(100)
        need = host.DESCRIPTORS + 99 * host.DESCRIPTORS_PER_PEER
        text = f"200 file descriptors, a process of a job of 100 needs up to {need}"
        assert found == Finding("descriptors", text, PROBLEM, f"ulimit -n {need}{above}")
    (found,) = host.check_descriptors(6)
    assert found == Finding("descriptors", "200 file descriptors, enough for a job of 6 processes")


def test_no_free_descriptor() -> None:
    """Next to nothing can be opened: no traceback, and each check that needs it has the remedy."""
    program = "import resource; import jaxpp.__main__ as m; resource.setrlimit(resource.RLIMIT_NOFILE, (4, 4)); "
    program += "raise SystemExit(m.main(['doctor', '--seconds', '20']))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    for name in ("loopback", "coordinator", "devices"):
        found = rf"^problem  {name:20} not checked: .*Too many open files.*\n {{9}}remedy               ulimit -n 4096$"
        assert re.search(found, done.stdout, re.MULTILINE), done.stdout


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (found,) = host.check_coordinator(f"127.0.0.1:{port}", 20)
    remedy = f"choose another port for the coordinator, or end what listens there: ss -ltnp 'sport = {port}'"
    assert found == Finding("coordinator", f"port {port} is in use at 127.0.0.1", PROBLEM, remedy)


def test_coordinators_of_other_hosts_and_of_none(probes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told(probes, "resolve", {"address": "192.0.2.1"})
    (found,) = host.check_coordinator("host0:9876", 20)
    assert found == Finding("coordinator", "host0:9876 is at 192.0.2.1, another host: check the port there")
    told(probes, "resolve", {"problem": "gaierror: [Errno -2] Name or service not known"})
    (found,) = host.check_coordinator("host0:9876", 20)
    assert found == Finding(
        "coordinator",
        "host0:9876: gaierror: [Errno -2] Name or service not known",
        PROBLEM,
        "give an address that this host can resolve: --coordinator, or JAX_COORDINATOR_ADDRESS",
    )
    told(probes, "resolve", {"address": "127.0.0.1"})
    refused = PermissionError(errno.EACCES, "Permission denied")
    monkeypatch.setattr(socket, "create_server", raising(refused))
    (found,) = host.check_coordinator("host0:80", 20)
    assert found.found == "port 80 is not allowed: [Errno 13] Permission denied"
    assert found.remedy == "choose a port for the coordinator that every user may have, from 1024 on"


def test_no_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "create_connection", raising(TimeoutError("timed out")))
    (found,) = host.check_loopback(1)
    remedy = "allow TCP connections at 127.0.0.1: ip link set lo up, or change the firewall"
    assert found == Finding("loopback", "no connection at 127.0.0.1: timed out", PROBLEM, remedy)


def returning(value: object) -> object:
    def function(*_: object) -> object:
        return value

    return function


def raising(error: Exception) -> object:
    def function(*_: object, **__: object) -> None:
        raise error

    return function


def test_shared_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "shm"
    monkeypatch.setattr(host, "_SHARED_FOLDER", folder)
    (found,) = host.check_shared_memory()
    assert (found.status, found.remedy) == (PROBLEM, f"mount it: mount -t tmpfs tmpfs {folder}")
    folder.mkdir()
    monkeypatch.setattr(os, "statvfs", returning(SimpleNamespace(f_bavail=16384, f_frsize=4096)))
    (found,) = host.check_shared_memory()
    remedy = "on GPUs and with Ray give more: docker run --shm-size=1g, or a volume of `medium: Memory`"
    assert found == Finding("shared memory", f"64 MiB are free in {folder}", NOTE, remedy)
    monkeypatch.setattr(os, "access", returning(False))
    (found,) = host.check_shared_memory()
    assert found == Finding("shared memory", f"{folder} can't be written", PROBLEM, f"chmod 1777 {folder}")


def test_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_is_synchronised", lambda: False)
    (found,) = host.check_clock()
    assert found.status == NOTE
    assert found.remedy == "to trace steps of several hosts, run an NTP service such as chrony on each"
    monkeypatch.setattr(time, "time", lambda: 86400.0)
    (found,) = host.check_clock()
    remedy = "set the clock, and run an NTP service such as chrony"
    text = "1970-01-02 00:00 UTC is before jaxpp was installed"
    assert found == Finding("clock", text, PROBLEM, remedy)


# Children


def test_a_transport_that_hangs(probes: Path) -> None:
    """Both processes are named, and none is left."""
    told(probes, "transport", {"doing": "it sends and receives 1 MB"}, "print(os.getpid(), flush=True); time.sleep(60)")
    begun = time.monotonic()
    (found,) = checks._check_transport("pair", "cpu", 1)
    assert time.monotonic() - begun < 10
    hung = "no answer within 1 s, while it sends and receives 1 MB"
    remedy = "choose another transport, which works here: JAXPP_TRANSPORT, or jaxpp.distributed.initialize"
    assert found == Finding("transport pair", f"process 0: {hung}; process 1: {hung}", PROBLEM, remedy)


def test_children_are_ended_whatever_happens(probes: Path) -> None:
    """One fails, and the other one has a moment to tell its own problem. Then it is killed."""
    rest = f"open({str(probes / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(60)"
    told(probes, "transport", {}, f"if sys.argv[2] == '1':\n    sys.exit(3)\n{rest}")
    first, second = probing.run_probes("transport", ["0", "1"], 30)
    assert first.problem == "it was ended, while it starts Python, as another process had failed"
    assert second.problem == "ended by exit code 3, while it starts Python: it printed nothing"
    with pytest.raises(ProcessLookupError):
        os.kill(int((probes / "pid").read_text()), 0)


def test_a_probe_ends_without_its_parent() -> None:
    """Also if the parent was killed, and nobody ends it."""
    program = "import sys, time; from jaxpp.doctor import probes; sys.argv[1:] = ['wait', '-4.8']; "
    program += "probes.PROBES['wait'] = lambda seconds: time.sleep(60); probes.main()"
    begun = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], check=False)
    assert time.monotonic() - begun < 30
    assert done.returncode < 0


def test_devices_that_hang_or_fail(probes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "")
    beginning = {"wrong": [], "transports": ["pull"], "doing": "JAX starts its devices"}
    told(probes, "devices", beginning, "time.sleep(60)")
    settings, devices, transports = checks._check_devices(1)
    assert settings.status == OK
    remedy = "end other processes that hold the devices, or leave the devices out: JAX_PLATFORMS=cpu"
    assert devices == Finding("devices", "no answer within 1 s, while JAX starts its devices", PROBLEM, remedy)
    solve = "solve the problem of the devices first"
    assert transports == Finding("transports", "not tried without devices", NOTE, solve)
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    told(probes, "devices", {**beginning, "problem": "RuntimeError: no CUDA"}, "sys.exit(1)")
    _, devices, _ = checks._check_devices(20)
    remedy = "JAX_PLATFORMS is 'cuda': install JAX for that platform, or unset the variable"
    assert devices == Finding("devices", "RuntimeError: no CUDA", PROBLEM, remedy)
    told(probes, "devices", {"doing": "it imports JAX"}, "os.abort()")
    devices, _ = checks._check_devices(20)
    text = "ended by signal 6, while it imports JAX: it printed nothing"
    remedy = "install both again: pip install --force-reinstall jax, and jaxpp"
    assert devices == Finding("devices", text, PROBLEM, remedy)


def test_settings_and_devices_that_are_noted(probes: Path) -> None:
    wrong = ["JAXPP_TRANSPORT is 'tcp'; give one of pull, pair", "JAXPP_TRANSFER_ADDRESS is '192.0.2.1', no address"]
    found = {**DEVICES, "wrong": wrong, "platforms": {"gpu": [1, "H100"]}, "default": "gpu", "warnings": ["no TPU"]}
    told(probes, "devices", found)
    first, second, *notes = checks._check_devices(20)
    assert first == Finding("settings", "JAXPP_TRANSPORT is 'tcp'", PROBLEM, "give one of pull, pair")
    assert second == Finding("settings", wrong[1], PROBLEM, "give an address of this host, or none")
    assert [(each.found, each.remedy) for each in notes] == [
        (
            "1 of gpu (H100), the default; jaxpp was tested on cpu only",
            "compare the first steps with plain jax.jit: jaxpp.compare",
        ),
        ("no TPU", "to use them: pip install 'jax[cuda13]', or 'jax[tpu]'"),
        ("not tried with wrong settings", "correct the settings first"),
    ]


def test_the_settings_of_a_host_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real probe, which finds them before any device starts."""
    monkeypatch.setenv("JAXPP_TRANSPORT", "tcp")
    monkeypatch.setenv("JAXPP_WATCHDOG_SECONDS", "soon")
    found = [each for each in checks._check_devices(300) if each.name == "settings"]
    assert [(each.found, each.remedy) for each in found] == [
        ("JAXPP_WATCHDOG_SECONDS is 'soon'", "give seconds, as 60"),
        ("JAXPP_TRANSPORT is 'tcp'", "give one of pull, device_put, pair"),
    ]


def test_a_check_that_fails_is_a_finding(probes: Path, monkeypatch: pytest.MonkeyPatch, free: str) -> None:
    monkeypatch.setattr(host, "check_clock", raising(ValueError("a bug\nof ours")))
    found = only(checks.examine(free), "clock")
    text = "not checked: ValueError: a bug of ours"
    assert found == Finding("clock", text, PROBLEM, "report this as a bug of jaxpp")


def test_long_errors_are_cut() -> None:
    assert finding.in_one_line("a\n  b") == "a b"
    assert finding.in_one_line("a" * 301) == "a" * 300 + "..."
