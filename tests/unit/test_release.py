"""`.ci/release.py`: what a cut writes, and what it refuses. `make release` itself takes minutes."""

import importlib.util
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import jaxpp

ROOT = Path(__file__).parents[2]
FILES = ("jaxpp/__init__.py", "CHANGELOG.md", "CITATION.cff")


def loaded() -> Any:
    spec = importlib.util.spec_from_file_location("release", ROOT / ".ci" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


release = loaded()


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A folder with the files that have a version."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_the_version_has_one_place() -> None:
    """Other files repeat it only where their form demands it, and agree."""
    assert release.version(ROOT) == jaxpp.__version__
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'dynamic = ["version"]' in project
    cited = re.findall(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    assert cited == [jaxpp.__version__]


def test_a_cut(copy: Path) -> None:
    before = {name: (copy / name).read_text(encoding="utf-8") for name in FILES}
    release.cut(copy, "0.2.0", "2027-01-02")
    after = {name: (copy / name).read_text(encoding="utf-8") for name in FILES}
    changed = {
        name: [line for line in after[name].splitlines() if line not in before[name].splitlines()] for name in FILES
    }
    assert changed == {
        "jaxpp/__init__.py": ['__version__ = "0.2.0"'],
        "CHANGELOG.md": ["## [0.2.0] - 2027-01-02"],
        "CITATION.cff": ["version: 0.2.0", "date-released: 2027-01-02"],
    }
    with pytest.raises(release.ReleaseError, match=r"^CHANGELOG.md has 0 lines like .*unreleased.*, expected one$"):
        release.cut(copy, "0.3.0", "2027-01-03")
    assert release.version(copy) == "0.2.0"  # nothing was written
    changelog = after["CHANGELOG.md"].replace("## [0.2.0]", "## [Unreleased] - unreleased\n\n## [0.2.0]", 1)
    (copy / "CHANGELOG.md").write_text(changelog, encoding="utf-8")
    release.cut(copy, "0.10.0", "2027-01-03")
    assert "date-released: 2027-01-03\n" in (copy / "CITATION.cff").read_text(encoding="utf-8")
    assert "2027-01-02" not in (copy / "CITATION.cff").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("0.2", "the version is '0.2', expected three numbers, as 0.2.0"),
        ("v0.2.0", "the version is 'v0.2.0', expected three numbers, as 0.2.0"),
        ("0.0.9", "the version 0.0.9 is older than that of jaxpp/__init__.py, 0.1.0"),
    ],
)
def test_versions_that_are_refused(copy: Path, version: str, message: str) -> None:
    (copy / "jaxpp" / "__init__.py").write_text('__version__ = "0.1.0"\n', encoding="utf-8")
    with pytest.raises(release.ReleaseError) as raised:
        release.cut(copy, version, "2027-01-02")
    assert str(raised.value) == message


def test_pythons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python counts if it runs, and is of the version that its name says."""
    for name, said in (("python3.11", "3.11"), ("python3.12", "3.11")):
        (tmp_path / name).write_text(f"#!/bin/sh\necho {said}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    kept = tmp_path / ".pyenv" / "versions" / "3.13.0" / "bin" / "python"
    kept.parent.mkdir(parents=True)
    kept.write_text("#!/bin/sh\necho 3.13\n", encoding="utf-8")
    kept.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert release.find_pythons(["3.11", "3.13"]) == {"3.11": str(tmp_path / "python3.11"), "3.13": str(kept)}
    with pytest.raises(release.ReleaseError) as raised:
        release.find_pythons(["3.11", "3.12"])
    assert str(raised.value) == "there is no Python 3.12 on PATH, nor of pyenv: install it first"


def test_files_that_are_not_committed_are_refused(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(release, "find_pythons", lambda _: {})  # pyright: ignore[reportUnknownLambdaType]
    monkeypatch.setattr(release, "run", lambda *_: "?? new.py\n")  # pyright: ignore[reportUnknownLambdaType]
    assert release.main([]) == 1
    said = "release: files differ from the last commit: commit or remove them first\n?? new.py\n"
    assert capsys.readouterr().err == said


def test_every_tested_python_is_checked() -> None:
    from jaxpp import _versions

    assert {*_versions.TESTED.values()} <= {*release.PYTHONS}
