"""Packages of an install without links: an archive, or a clone on Windows, has a text file in place of each link."""

from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent

if (ROOT / "src" / "jaxpp").is_dir():
    setup(packages=find_packages("src"), package_dir={"": "src"})
else:
    rooms = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    folders = {"jaxpp" if room == "jaxpp" else f"jaxpp.{room}": room for room in sorted(rooms)}
    inner = [f"{package}.{name}" for package, room in folders.items() for name in find_packages(room)]
    setup(packages=[*folders, *inner], package_dir=folders)
