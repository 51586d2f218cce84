"""A job that heals: really started, and one of its processes really killed."""

import contextlib
import json
import os
import re
import signal
import socket
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from unit.healing import forked, job

import jaxpp
from jaxpp import MpmdMesh, healing
from jaxpp.healing import launcher
from jaxpp.tools import run


def test_a_job_goes_on_with_one_process_and_then_with_two_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The one that dies is the first, where a job of `jax.distributed` has its service."""
    output = tmp_path / "output"
    options = ["--processes", "2", "--least", "1", "--prepare", job.__file__, str(tmp_path)]
    code, errors = forked.jaxpp_run(monkeypatch, output, *options), capfd.readouterr().err
    assert code == 0, output.read_text() + errors
    told: list[dict[str, Any]] = [json.loads(line) for line in output.read_text().splitlines() if line.startswith("{")]
    losses = {each["step"]: each["loss"] for each in told if "step" in each}
    processes = [each["processes"] for each in told if "step" in each]
    changes = [count for k, count in enumerate(processes) if k == 0 or processes[k - 1] != count]
    assert changes == [2, 1, 2]
    assert len(processes) <= job.STEPS + 1  # one step, at most, is made again

    step, state = jax.jit(partial(job.EXAMPLE["train_step"], 2)), job.EXAMPLE["first_state"]()
    for number in range(job.STEPS):
        state, loss = step(state, job.EXAMPLE["batch"](number))
        np.testing.assert_allclose(losses[number], float(loss), rtol=1e-6)
    made, key, weight = told[-1]["last"]
    assert (made, key) == (job.STEPS, jax.random.key_data(state["key"]).tolist())
    np.testing.assert_allclose(weight, state["weights"][1], rtol=1e-5, atol=1e-6)

    found = re.sub(r"\(.*?\)", "()", errors)
    assert "jaxpp: the process of slot 0 () ended by signal 9, and is started anew\n" in found
    assert "jaxpp: 1 of 2 processes compile the step ahead\n" in found
    assert "jaxpp: 1 of 2 processes go on after step 3\n" in found
    states = {*(tmp_path / "states").read_text().split()}
    assert states == {f"{number}:{number + 1}" for number in range(job.STEPS)}
    lowered = (tmp_path / "lowered").read_text().split()
    assert sorted(lowered) == ["1", "2", "2"]  # each process once for each number of processes, and never again
    assert re.search(r"jaxpp: 2 of 2 processes go on after step \d\n", found)


SPARES = """
import json, os, signal, sys, time
from pathlib import Path
import jax, jaxpp
from unit.healing import job

folder = Path(sys.argv[1])

def once(name):
    try:
        (folder / name).open("x").close()
    except FileExistsError:
        return False
    return True

def on_step(number, output):
    if number == 3 and jax.process_index() == 0 and once("killed process 0"):
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 6 and jax.process_index() == 0 and once("killed the head"):
        os.kill(int((folder / "head").read_text()), signal.SIGKILL)
        time.sleep(60)
    row = json.dumps([number, jax.process_count(), float(jaxpp.fetch(output)).hex()])
    os.write(1, (row + chr(10)).encode())  # as a whole: several processes print

arguments = [job.EXAMPLE[name] for name in ("make_step", "first_state", "batch")]
jaxpp.healing.train(*arguments, 9, on_step=on_step, plans=folder / "plans")
"""


def test_a_spare_takes_the_place_of_process_0_and_a_launcher_that_of_the_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing is lost, and no loss differs in a bit from those of a job without failures."""
    script, output = tmp_path / "train.py", tmp_path / "output"
    script.write_text(SPARES)
    with socket.create_server(("127.0.0.1", 0)) as free:
        head = f"127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setenv("JAXPP_JOB_SECRET", "secret")
    begins = ["--processes", "2", "--spares", "1", "--here", "1", "--listen", head, str(script), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    first = forked.started(forked.run_tool, output, begins, environment)
    try:
        (tmp_path / "head").write_text(str(first.pid))
        end = time.monotonic() + 60
        while not is_there(head) and time.monotonic() < end:
            time.sleep(0.05)
        code = forked.jaxpp_run(monkeypatch, output, "--join", head, "--here", "2", str(script), str(tmp_path))
    finally:
        first.kill()
    told, printed = capfd.readouterr().err, output.read_text()
    assert (first.wait(), code) == (-signal.SIGKILL, 0), told + printed
    found = [json.loads(row) for row in printed.splitlines() if row.startswith("[")]
    assert {processes for _, processes, _ in found} == {2}
    assert "jaxpp: 2 of 2 processes go on after step 6\n" in told or "go on after step 7\n" in told

    stages = MpmdMesh.make(mpmd=2)
    step = jaxpp.mpmd_jit_with_loop(partial(job.EXAMPLE["train_step"], 2), mpmd_mesh=stages)
    state = job.EXAMPLE["first_state"]()
    for number in range(9):
        state, loss = step(state, job.EXAMPLE["batch"](number))
        losses = [value for made, _, value in found if made == number]
        assert set(losses) == {float(loss).hex()}
        assert len(losses) <= 4  # one step, at most, is made again after each failure


def is_there(address: str) -> bool:
    """Whether somebody listens there."""
    host, port = address.split(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1):
        return True
    return False


DIES_AS_IT_BEGINS = """
import os, signal, sys
from unit.healing import job
from jaxpp import _jobs, healing

def hit(*_):
    open(sys.argv[1], "x").close()
    os.kill(os.getpid(), signal.Signals[sys.argv[2]])

if os.environ["JAXPP_RUN_SLOT"] == "1" and not os.path.exists(sys.argv[1]):
    _jobs.connected_client = hit
healing.train(*(job.EXAMPLE[name] for name in ("make_step", "first_state", "batch")), 2)
"""


@pytest.mark.parametrize("blow", ["SIGKILL", "SIGSTOP"])
def test_a_process_is_hit_while_a_generation_begins(
    blow: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The others would wait for it in C++ for a minute, and be killed for that."""
    script = tmp_path / "dies.py"
    script.write_text(DIES_AS_IT_BEGINS)
    monkeypatch.setenv("JAXPP_WATCHDOG_SECONDS", "3")
    options = ["--processes", "2", "--least", "1", str(script), str(tmp_path / "hit"), blow]
    code, errors = forked.jaxpp_run(monkeypatch, tmp_path / "output", *options), capfd.readouterr().err
    assert code == 0, errors
    assert "processes go on from the beginning\n" in errors
    assert "it is killed" not in errors
    assert "the process of slot 0" not in errors


def test_a_script_that_fails_before_it_trains_ends_the_job(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It is started once, and its own message stands before that of the launcher."""
    script = tmp_path / "wrong.py"
    script.write_text("import sys\nprint('no such data', file=sys.stderr)\nsys.exit(3)")
    assert run.main(["--processes", "1", str(script)]) == 1
    assert capfd.readouterr().err == (
        "no such data\njaxpp: the process of slot 0 ended by exit code 3 before it called jaxpp.healing.train: what it "
        "said stands above; the script is not started again\n"
    )


def test_a_process_that_is_killed_before_it_trains_is_started_anew(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "killed.py"
    script.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    assert run.main(["--processes", "1", str(script)]) == 1
    told = re.sub(r"\(.*?\)", "()", capfd.readouterr().err)
    again = "jaxpp: the process of slot 0 () ended by signal 9, and is started anew\n"
    assert told == 2 * again + "jaxpp: the process of slot 0 ended 3 times before it trained: signal 9\n"


def test_a_training_that_fails_before_its_first_state_ends_the_job(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "wrong.py"
    script.write_text(
        "import jaxpp\ndef first_state(): raise ValueError('no such file')\n"
        "jaxpp.healing.train(None, first_state, None, 2)\n"
    )
    assert run.main(["--processes", "1", str(script)]) == 1
    told = capfd.readouterr().err
    assert told.count("\nValueError: no such file\n") == 1
    assert told.endswith(
        "jaxpp: the training failed before its first state was held, so it is not begun again: ValueError: no such "
        "file\n"
    )


def test_a_script_that_never_trains(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "LAST_WORD", 0.0)
    script = tmp_path / "wrong.py"
    script.write_text("print('made')")
    assert run.main(["--processes", "1", str(script)]) == 1
    found = capfd.readouterr()
    assert found.out == "made\n"
    assert found.err == "jaxpp: the script has ended, in slot 0, and never called jaxpp.healing.train\n"


def test_signals_end_the_processes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    script = tmp_path / "slow.py"
    for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)):
        pids = tmp_path / f"pid{code}"
        script.write_text(
            f"import os, time\nopen({str(pids)!r}, 'w').write(str(os.getpid()))\n"
            f"os.kill(os.getppid(), {int(number)})\ntime.sleep(60)\n"
        )
        try:
            ended = run.main(["--processes", "1", str(script)])
        except SystemExit as error:
            ended = error.code
        assert ended == code
        with pytest.raises(ProcessLookupError):
            os.kill(int(pids.read_text()), 0)
        assert not list(tmp_path.glob("jaxpp-programs-*"))


JOIN_KNOWS = "--join knows --processes, --least, --spares and --prepare from there"


def test_processes_have_time_to_end(tmp_path: Path) -> None:
    """They get SIGTERM first."""
    script, saved = tmp_path / "saves.py", tmp_path / "saved"
    script.write_text(
        "import os, signal, sys, time\n"
        f"signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.3), open({str(saved)!r}, 'w').close(), sys.exit()))\n"
        "os.kill(os.getppid(), signal.SIGTERM)\ntime.sleep(60)\n"
    )
    with pytest.raises(SystemExit, match="143"):
        run.main(["--processes", "1", str(script)])
    assert saved.exists()


def test_nohup_is_heeded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "LAST_WORD", 0.0)
    script = tmp_path / "hangs_up.py"
    script.write_text("import os, signal\nos.kill(os.getppid(), signal.SIGHUP)\n")
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run.main(["--processes", "1", str(script)]) == 1  # it never trains
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--processes", "2"], "no script is given"),
        ([__file__], "give --processes, at least 1"),
        (["--processes", "2", "--least", "3", __file__], "--least 3 is not between 1 and --processes 2"),
        (
            ["--join", "host0:1", "--least", "3", __file__],
            "--join knows --processes, --least, --spares and --prepare from there",
        ),
        (["--join", "host0:1", __file__], "--join needs JAXPP_JOB_SECRET"),
        (["--processes", "2", "nowhere.py"], "there is no script nowhere.py"),
        (["--processes", "2", "--listen", "host0", __file__], "argument --listen: host0 is not HOST:PORT"),
        (["--join", "host0:port", __file__], "argument --join: host0:port is not HOST:PORT"),
        (
            ["--processes", "2", "--listen", "host0:65536", __file__],
            "argument --listen: host0:65536: there is no such port, they go up to 65535",
        ),
        (
            ["--join", "host0:99999", __file__],
            "argument --join: host0:99999: there is no such port, they go up to 65535",
        ),
        (
            ["--processes", "2", "--spares", "-1", __file__],
            "argument --spares: expected a number from 0 on, found '-1'",
        ),
        (["--join", "host0:1", "--spares", "1", __file__], JOIN_KNOWS),
        (["--processes", "2", "--here", "3", __file__], "--here 3 is not between 1 and --processes 2"),
        (
            ["--processes", "2", "--spares", "1", "--here", "4", __file__],
            "--here 4 is not between 1 and --processes 2 and --spares 1 together",
        ),
        (["--processes", "2", "--wait", "-3", __file__], "--wait -3 is less than 0 seconds"),
        (["--join", "host0:1", "--here", "0", __file__], "argument --here: expected a number from 1 on, found '0'"),
        (["--processes", "-1", __file__], "argument --processes: expected a number from 1 on, found '-1'"),
    ],
)
def test_usage(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run.main(arguments)
    assert capsys.readouterr().err.endswith(f"jaxpp-run: error: {message}\n")


def test_a_head_that_is_not_there(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("JAXPP_JOB_SECRET", "secret")
    assert run.main(["--join", "127.0.0.1:1", __file__]) == 1
    assert "jaxpp-run: 127.0.0.1:1 can't be reached: " in capsys.readouterr().err


def test_addresses_that_do_not_exist(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("JAXPP_JOB_SECRET", "secret")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert run.main(["--processes", "1", "--listen", address, __file__]) == 1
    assert run.main(["--processes", "1", "--listen", "192.0.2.1:9", __file__]) == 1
    assert run.main(["--join", "nowhere.invalid:9", __file__]) == 1
    first, second, third = capsys.readouterr().err.splitlines()
    free = "; give a port that is free on an address of this host"
    assert first.startswith(f"jaxpp-run: --listen {address}: [Errno 98] Address already in use")
    assert first.endswith(free)
    assert second.startswith("jaxpp-run: --listen 192.0.2.1:9: [Errno 99] Cannot assign requested address")
    assert second.endswith(free)
    assert third.startswith("jaxpp-run: --join nowhere.invalid:9: [Errno -")


@pytest.mark.parametrize("name", ["steps", "every", "watch"])
def test_wrong_numbers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXPP_RUN_HEAD", "nowhere")
    with pytest.raises(ValueError, match=rf"^{name} must be at least \d, not -1$"):
        healing.train(lambda: None, lambda: None, lambda number: None, **{"steps": 1, name: -1})  # pyright: ignore[reportArgumentType]  # one of the numbers


def test_train_alone() -> None:
    with pytest.raises(RuntimeError, match="run the script by jaxpp-run"):
        healing.train(lambda: None, lambda: None, lambda number: None, 1)
