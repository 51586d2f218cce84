"""The site of docs/: it builds, all its links lead somewhere, and its parts are complete."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from markdown.extensions.toc import slugify
from unit.browser import browser
from unit.test_prose import paragraphs

import jaxpp

ROOT = Path(__file__).parents[2]
MOST = 1200
"""The most words of prose of a page: its paragraphs and lists, without code, tables and headings."""
MOST_OF_ALL = 30_000
REFERENCES = ("ir.md", "passes.md")
"""Pages that people look things up in, and do not read from the beginning."""
GENERATED = ("passes.md",)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site. `--strict` refuses a link to a page, a section or a file that is not there, and a page in no menu."""
    folder = tmp_path_factory.mktemp("site")
    command = (sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_site_has_the_files_that_pages_link_to(site: Path) -> None:
    for name in ("examples/two_towers.py", "benchmarks/index.html", "benchmarks/oracle.py"):
        assert (site / "source" / name).exists()


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        page = path.read_text(encoding="utf-8")
        assert not re.findall(r"<(?:script|link|img|iframe)[^>]* (?:src|href)=.?https?:[^ >]*", page), path


def test_the_search_finds_a_word_without_a_server(site: Path) -> None:
    link = "[...document.querySelectorAll('.md-search-result__link')].find((each) => each.href.includes('h=cholesky#'))"
    with browser() as page:
        for width in (1280, 390):
            page.open(site / "index.html", width)
            page.evaluate("document.querySelector('label[for=__search]').click()")
            page.evaluate("document.querySelector('.md-search__input').focus()")
            page.type("cholesky")
            found = page.until(f"{link}?.href")
            assert found.startswith(f"{(site / 'extend.html').as_uri()}?h=cholesky#an-operation"), found
        page.open(found)
        assert page.until("document.querySelector('mark')?.innerText").lower() == "cholesky"
        assert page.errors == []


def links(path: Path) -> list[str]:
    """The links of a page to files of the repository."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"\]\((?!\w+:)([^)\s]+)\)", text)


@pytest.mark.parametrize("path", sorted(ROOT.glob("*.md")), ids=lambda path: path.name)
def test_links_of_the_root_hold(path: Path) -> None:
    for link in links(path):
        name, _, section = link.partition("#")
        target = ROOT / name if name else path
        assert target.exists(), link
        headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE) if section else []
        assert not section or section in {slugify(heading, "-") for heading in headings}, link


def test_the_api_has_every_public_name() -> None:
    documented = re.findall(r"^::: jaxpp\.names\.(\w+)$", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), re.M)
    assert documented == sorted(vars(jaxpp)["_NAMES"], key=str.lower)


def test_the_guide_has_every_public_name() -> None:
    guide = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
    in_code = set(re.findall(r"\w+", " ".join(re.findall(r"```.*?```|`[^`]+`", guide, re.DOTALL))))
    assert {*vars(jaxpp)["_NAMES"], *vars(jaxpp)["_MODULES"]} - in_code == set()


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_lists_are_as_deep_as_they_look(path: Path) -> None:
    """The site takes four spaces for each level of a list, and an empty line after a paragraph in an entry."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    assert re.findall(r"\n\n(?! {4}(?: {4})*\S) +\S.*|^(?! {4}(?: {4})*\S) +(?:-|\d+\.) .*", text, re.MULTILINE) == []
    assert re.findall(r"^ {4}.*\n(?:-|\d+\.) .*", text, re.MULTILINE) == []


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
