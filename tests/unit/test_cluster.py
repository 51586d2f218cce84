"""The image, the SLURM script and the Kubernetes manifest: linters accept them, and what they run is right."""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from unit.test_examples import example

from jaxpp import _versions

yaml: Any = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "examples" / "cluster"
DOCKERFILE = ROOT / "docker" / "Dockerfile"


def test_the_page_shows_these_files() -> None:
    page = (ROOT / "docs" / "multihost.md").read_text(encoding="utf-8")
    for path in CLUSTER.iterdir():
        assert textwrap.indent(path.read_text(encoding="utf-8"), "    ") in page, path.name


def test_linters_accept_them() -> None:
    lint("hadolint", DOCKERFILE)
    lint("shellcheck", CLUSTER / "gpt.sbatch")


def lint(tool: str, path: Path) -> None:
    """Runs a linter of this environment."""
    command = shutil.which(tool, path=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))
    if command is None:
        pytest.skip(f"{tool} is not installed here")
    done = subprocess.run([command, str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_image_has_versions_that_were_tested() -> None:
    lines = DOCKERFILE.read_text(encoding="utf-8").splitlines()
    defaults = dict(line.removeprefix("ARG ").split("=") for line in lines if line.startswith("ARG "))
    assert _versions.TESTED[defaults["JAX"]] == defaults["PYTHON"]
    assert defaults["PLATFORM"] == ""


def test_the_slurm_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs the example on as many devices as it asks SLURM for."""
    script = CLUSTER / "gpt.sbatch"
    (tmp_path / "python").symlink_to(sys.executable)
    recorder(tmp_path / "srun", 'echo "$JAX_PLATFORMS"; echo "${#JAXPP_JOB_SECRET}"; ')
    platform, secret, option, python, path, *flags = output(tmp_path, ["bash", str(script)])
    assert (platform, secret, option, python) == ("cuda", "64", "--kill-on-bad-exit=1", "python")
    options = gpt(monkeypatch, path, flags)
    words = " ".join(line for line in script.read_text().splitlines() if line.startswith("#SBATCH")).split()
    asked = dict(word.removeprefix("--").split("=") for word in words if word.startswith("--"))
    assert options.coordinator == "auto"
    assert options.processes == int(asked["nodes"]) * int(asked["ntasks-per-node"])
    assert options.devices == int(asked["nodes"]) * int(asked["gpus-per-node"])


def test_the_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pods run the example, each as the process of its index, with the first pod as coordinator."""
    jobs, policy = yaml.safe_load_all((CLUSTER / "gpt.yaml").read_text(encoding="utf-8"))
    assert (jobs["apiVersion"], jobs["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    (replicated,) = jobs["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    recorder(tmp_path / "python")
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "3")
    path, *flags = output(tmp_path, [*container["command"], *container["args"]])
    options = gpt(monkeypatch, path, flags)
    name = jobs["metadata"]["name"]
    assert options.coordinator == f"{name}-{replicated['name']}-0-0.{name}:9876"
    assert options.process == 3
    assert options.processes == job["parallelism"] == job["completions"]
    assert job["completionMode"] == "Indexed"  # otherwise no pod has an index
    assert (pod["restartPolicy"], job["backoffLimit"]) == ("Never", 0)  # the JobSet restarts all pods together
    assert options.devices == options.processes * container["resources"]["limits"]["nvidia.com/gpu"]
    variables = {each["name"]: each for each in container["env"]}
    assert variables["JAX_PLATFORMS"]["value"] == "cuda"
    assert variables["JAXPP_JOB_SECRET"]["valueFrom"]["secretKeyRef"] == {"name": name, "key": "job"}
    assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in pod["volumes"]}

    pods = {"podSelector": {"matchLabels": {"jobset.sigs.k8s.io/jobset-name": name}}}
    assert (policy["apiVersion"], policy["kind"]) == ("networking.k8s.io/v1", "NetworkPolicy")
    assert policy["spec"] == {**pods, "policyTypes": ["Ingress"], "ingress": [{"from": [pods]}]}


def recorder(path: Path, before: str = "") -> None:
    """A command that prints its arguments, one a line."""
    path.write_text(f"#!/bin/sh\n{before}printf '%s\\n' \"$@\"\n", encoding="utf-8")
    path.chmod(0o755)


def output(commands: Path, command: list[str]) -> list[str]:
    """The lines that a command prints where the commands of a folder come first."""
    path = os.pathsep.join((str(commands), os.environ["PATH"]))
    done = subprocess.run(command, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def gpt(monkeypatch: pytest.MonkeyPatch, path: str, flags: list[str]) -> Any:
    """The options of the example for these flags, which it checks."""
    assert path == "examples/gpt.py"
    module = example("gpt_options", monkeypatch)
    monkeypatch.setattr(module, "_find_devices", lambda _: [])  # pyright: ignore[reportUnknownLambdaType]
    return module.parse(flags)[0]
