"""`.ci/run`: which Pythons it takes, with stand-ins for them and for make."""

import shutil
import subprocess
from pathlib import Path

import pytest

RUN = Path(__file__).parents[2] / ".ci" / "run"
MAKE = """#!/usr/bin/env bash
venv=.venv
for word in "$@"; do case "$word" in VENV=*) venv=${word#VENV=} ;; esac; done
if [ "$1" = install ]; then
  case "$*" in *python3.14*) echo "some output"; echo "no wheels"; exit 1 ;; esac
  mkdir -p "$venv/bin"
  printf '#!/bin/sh\\necho "== the versions of %s"\\n' "$venv" > "$venv/bin/python"
  chmod +x "$venv/bin/python"
else
  echo "make $*"
  [ ! -e "$1-fails" ]
fi
"""


def test_the_oldest_python_and_the_newest_that_can_be_used(tmp_path: Path) -> None:
    """The newest runs a sixth of its tests, as the hash of the commit says."""
    assert output(tmp_path, "python3.11", "python3.12", "python3.13", "python3.14") == [
        "== the versions of .venv",
        "make test",
        "== Python 3.14 is left out, as installing under it fails: no wheels",
        "make lit",
        "== the versions of .venv-3.13",
        f"make optimized VENV=.venv-3.13 PYTHON={tmp_path}/bin/python3.13",
        f"make rest VENV=.venv-3.13 PYTHON={tmp_path}/bin/python3.13 PART=6/6",
    ]


@pytest.mark.parametrize(("commit", "part"), [("0" * 40, "1/6"), ("00000001" + "f" * 32, "2/6"), ("f" * 64, "4/6")])
def test_a_part_for_each_commit(tmp_path: Path, commit: str, part: str) -> None:
    assert output(tmp_path, "python3.12", "python3.13", commit=commit)[-1].endswith(f" PART={part}")


@pytest.mark.parametrize("others", [(), ("python3.14",)])
def test_one_python_alone(tmp_path: Path, others: tuple[str, ...]) -> None:
    *before, lit, reason, last = output(tmp_path, "python3.12", *others)
    assert lit == "make lit"
    assert ["3.14 is left out" in line for line in before[2:]] == [True] * len(others)
    assert reason == "== no Python newer than 3.12 that JAX can be installed for: one environment was tested"
    assert last == "make optimized"


@pytest.mark.parametrize("others", [(), ("python3.13",)])
def test_lit_tests_that_fail(tmp_path: Path, others: tuple[str, ...]) -> None:
    """They run beside an installation, and yet end it all."""
    (tmp_path / "lit-fails").touch()
    *_, before, last = output(tmp_path, "python3.12", *others, code=1)
    assert (before, last) == ("make test", "make lit")


def output(folder: Path, *pythons: str, code: int = 0, commit: str = "0000000b" + "0" * 32) -> list[str]:
    """The lines that it prints where these Pythons are on PATH, and none else."""
    (folder / ".ci").mkdir()
    (folder / "bin").mkdir()
    shutil.copy(RUN, folder / ".ci")
    for tool in ("bash", "cat", "chmod", "dirname", "env", "mkdir", "mktemp", "rm", "sort", "tail"):
        (folder / "bin" / tool).symlink_to(shutil.which(tool) or tool)
    scripts = {name: f'#!/usr/bin/env bash\necho "{name.partition(".")[2]} $0"\n' for name in pythons}
    git = f'#!/usr/bin/env bash\n[ "$*" = "rev-parse HEAD" ] && echo {commit}\n'
    for name, text in {**scripts, "make": MAKE, "git": git}.items():
        (folder / "bin" / name).write_text(text, encoding="utf-8")
        (folder / "bin" / name).chmod(0o755)
    command = [str(folder / "bin" / "bash"), str(folder / ".ci" / "run")]
    done = subprocess.run(command, env={"PATH": str(folder / "bin")}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, "")
    return done.stdout.splitlines()
