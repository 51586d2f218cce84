"""Makes a release: `make release`, or `make release VERSION=0.2.0` to cut the version first.

Without a version it builds the sdist and the wheel into dist/, and checks them: `twine check`, and for each tested
Python a clean environment, in which jaxpp is imported, `jaxpp-opt --version` runs, and the program of the README runs.
With a version it first writes it into jaxpp/__init__.py, CHANGELOG.md and CITATION.cff, and commits them. It uploads
and tags nothing: it prints the commands for that.
"""

import argparse
import datetime
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13")
"""The versions of Python for which a release is checked."""
VERSION = re.compile(r'^__version__ = "(.*)"$', re.MULTILINE)
HEADING = re.compile(r"^## \[.*\] - unreleased$", re.MULTILINE)
CITED = re.compile(r"^version: .*\n(date-released: .*\n)?", re.MULTILINE)


class ReleaseError(Exception):
    """The release can't be made."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command, and returns its exit code."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("version", nargs="?", metavar="VERSION", help="cut this version first")
    options = parser.parse_args(arguments)
    try:
        pythons = find_pythons(PYTHONS)
        if changed := run("git", "status", "--porcelain"):
            raise ReleaseError(f"files differ from the last commit: commit or remove them first\n{changed.rstrip()}")
        if options.version:
            cut(ROOT, options.version, datetime.date.today().isoformat())
            run("git", "commit", "--all", "--message", f"release: {options.version}")
        files = build(ROOT / "dist")
        for name, python in pythons.items():
            for file in files:
                check(file, python)
                print(f"== {file.name} works in a clean environment of Python {name}", flush=True)
    except (ReleaseError, subprocess.CalledProcessError) as error:
        shown = f"{error}\n{error.stdout}{error.stderr}" if isinstance(error, subprocess.CalledProcessError) else error
        print(f"release: {shown}", file=sys.stderr)
        return 1
    names = " ".join(f"dist/{file.name}" for file in files)
    print(f"To publish it: git tag v{version(ROOT)} && git push --tags && {sys.executable} -m twine upload {names}")
    return 0


def version(root: Path) -> str:
    """Returns the version of jaxpp. Its one place is jaxpp/__init__.py; pip reads it there."""
    found = VERSION.search((root / "jaxpp" / "__init__.py").read_text(encoding="utf-8"))
    if found is None:
        raise ReleaseError('jaxpp/__init__.py has no line __version__ = "..."')
    return found[1]


def cut(root: Path, new: str, date: str) -> None:
    """Writes a version and its date into the files that have them. Raises ReleaseError before it writes anything."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", new):
        raise ReleaseError(f"the version is {new!r}, expected three numbers, as 0.2.0")
    old = version(root)
    if numbers(new) < numbers(old):
        raise ReleaseError(f"the version {new} is older than that of jaxpp/__init__.py, {old}")
    changes = (
        ("jaxpp/__init__.py", VERSION, f'__version__ = "{new}"'),
        ("CHANGELOG.md", HEADING, f"## [{new}] - {date}"),
        ("CITATION.cff", CITED, f"version: {new}\ndate-released: {date}\n"),
    )
    texts: dict[Path, str] = {}
    for name, line, replacement in changes:
        text = (root / name).read_text(encoding="utf-8")
        if len(line.findall(text)) != 1:
            raise ReleaseError(f"{name} has {len(line.findall(text))} lines like {line.pattern!r}, expected one")
        texts[root / name] = line.sub(replacement, text)
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")


def numbers(text: str) -> tuple[int, ...]:
    """Returns the numbers of a version."""
    return tuple(int(part) for part in text.split("."))


def find_pythons(wanted: Sequence[str]) -> dict[str, str]:
    """Returns the path of each wanted Python, from PATH or pyenv. Raises ReleaseError if one is missing."""
    found: dict[str, str] = {}
    for name in wanted:
        candidates = [shutil.which(f"python{name}"), *Path.home().glob(f".pyenv/versions/{name}.*/bin/python")]
        show = "import sys; print('%d.%d' % sys.version_info[:2])"
        for python in filter(None, candidates):  # pyenv has a `python3.12` that only tells that it is off
            done = subprocess.run([str(python), "-c", show], capture_output=True, text=True, check=False)
            if done.stdout.strip() == name:
                found[name] = str(python)
                break
    if missing := [name for name in wanted if name not in found]:
        raise ReleaseError(f"there is no Python {', '.join(missing)} on PATH, nor of pyenv: install it first")
    return found


def build(folder: Path) -> list[Path]:
    """Builds the wheel, of the sdist, and returns the wheel and the sdist. Raises CalledProcessError."""
    shutil.rmtree(folder, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", str(folder))
    files = sorted(folder.iterdir())
    run(sys.executable, "-m", "twine", "check", "--strict", *map(str, files))
    return files


def check(file: Path, python: str) -> None:
    """Installs a distribution into a clean environment, and uses it there. Raises CalledProcessError, ReleaseError."""
    with tempfile.TemporaryDirectory(prefix="jaxpp-release-") as name:
        folder = Path(name)
        run(python, "-m", "venv", str(folder / "venv"), folder=folder)
        commands = folder / "venv" / "bin"
        run(str(commands / "pip"), "install", str(file), folder=folder)
        for command in (
            [str(commands / "python"), "-c", "import jaxpp; print('jaxpp', jaxpp.__version__)"],
            [str(commands / "jaxpp-opt"), "--version"],
        ):
            said = run(*command, folder=folder)
            if not re.match(rf"jaxpp {re.escape(version(ROOT))}\b", said):
                raise ReleaseError(f"{file.name}: {command[0]} says {said!r}, expected jaxpp {version(ROOT)}")
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        blocks = re.findall(r"^```python\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
        (folder / "readme.py").write_text("\n".join(blocks), encoding="utf-8")
        run(str(commands / "python"), "readme.py", folder=folder)


def run(*command: str, folder: Path = ROOT) -> str:
    """Returns what a command prints. Raises CalledProcessError if it fails.

    Nothing of this shell's Python is seen there.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
