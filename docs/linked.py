"""A hook of MkDocs: adds the files outside of docs/ that pages link to, such as examples, to the site."""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
_LINK = re.compile(r"\]\((?!\w+:)([^)#]+)")
_OUTSIDE = "](../"


def on_files(files: Any, config: Any) -> Any:
    """Adds each linked file under `source/`, and the files that it links to."""
    waiting = [(page.content_string, "docs") for page in files.documentation_pages()]
    while waiting:
        text, folder = waiting.pop()
        for link in _LINK.findall(text):
            name = posixpath.normpath(f"{folder}/{link}")
            uri = f"source/{name}"
            if name.startswith("docs/") or files.get_file_from_path(uri) is not None:
                continue
            content = (ROOT / name).read_text(encoding="utf-8")
            files.append(File.generated(config, uri, content=content))
            if name.endswith(".md"):
                waiting.append((content, posixpath.dirname(name)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Points links to files outside of docs/ to their copies."""
    return markdown if page.file.src_uri.startswith("source/") else markdown.replace(_OUTSIDE, "](source/")
