"""The site of docs/: it builds, all its links lead somewhere, and its parts are complete."""

import re
import subprocess
import sys
from pathlib import Path

from unit.test_prose import paragraphs

import jaxpp

ROOT = Path(__file__).parents[2]
MOST = 1200
"""The most words of prose of a page: its paragraphs and lists, without code, tables and headings."""
MOST_OF_ALL = 30_000
REFERENCES = ("ir.md", "passes.md")
"""Pages that people look things up in, and do not read from the beginning."""
GENERATED = ("passes.md",)


def test_the_site_builds_and_its_links_hold(tmp_path: Path) -> None:
    """`--strict` refuses a link to a page, a section or a file that is not there, and a page that no menu has."""
    command = (sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "search" / "search_index.js").exists()  # the search works without a server
    for name in ("examples/two_towers.py", "benchmarks/index.html", "benchmarks/oracle.py"):
        assert (tmp_path / "source" / name).exists()


def test_the_api_has_every_public_name() -> None:
    documented = re.findall(r"^::: jaxpp\.names\.(\w+)$", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), re.M)
    assert documented == sorted(vars(jaxpp)["_NAMES"], key=str.lower)


def test_the_guide_has_every_public_name() -> None:
    guide = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
    in_code = set(re.findall(r"\w+", " ".join(re.findall(r"```.*?```|`[^`]+`", guide, re.DOTALL))))
    assert {*vars(jaxpp)["_NAMES"], *vars(jaxpp)["_MODULES"]} - in_code == set()


def test_pages_are_short() -> None:
    words = {
        path.name: sum(len(text.split()) for _, text in paragraphs(path.read_text(encoding="utf-8")))
        for path in (ROOT / "docs").glob("*.md")
    }
    long = {name: count for name, count in words.items() if count > MOST and name not in REFERENCES}
    assert not long, (
        f"a page has at most {MOST} words of prose: say things once, or make two pages of two ideas: {long}"
    )
    assert sum(count for name, count in words.items() if name not in GENERATED) <= MOST_OF_ALL


def test_the_readme_is_short() -> None:
    words = [word for word in (ROOT / "README.md").read_text(encoding="utf-8").split() if re.search(r"\w", word)]
    assert len(words) <= 700
