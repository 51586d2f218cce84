"""Files are whole, or are not there; and the collector of garbage leaves imports alone."""

import gc
import os
import re
import threading
from pathlib import Path

import pytest

from jaxpp._system import collector_paused, write_file


def test_threads_that_write_one_file_leave_one_of_their_texts(tmp_path: Path) -> None:
    """A temporary name that is the process's number alone was shared by its threads."""
    path = tmp_path / "file"
    texts = [bytes([65 + number]) * 200_000 for number in range(8)]
    errors: list[BaseException] = []

    def write(text: bytes) -> None:
        try:
            for _ in range(5):
                write_file(str(path), text)
        except OSError as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert path.read_bytes() in texts
    assert os.listdir(tmp_path) == ["file"]


def test_bytes_are_on_the_disk_before_the_name_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    sync, move = os.fsync, os.replace

    def fsync(number: int) -> None:
        done.append("sync")
        sync(number)

    def replace(source: str, target: str) -> None:
        done.append("rename")
        move(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    write_file(str(tmp_path / "file"), b"x")
    assert done == ["sync", "rename", "sync"]


def test_a_failed_write_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_file(str(path), b"before")
    path.chmod(0o640)

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            write_file(str(path), b"after")
    assert path.read_bytes() == b"before"
    assert os.listdir(tmp_path) == ["file"]
    write_file(str(path), b"after")
    assert path.read_bytes() == b"after"
    assert path.stat().st_mode & 0o777 == 0o640


def test_the_collector_is_paused_and_leaves_imports_alone() -> None:
    gc.unfreeze()
    with collector_paused():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert not gc.get_freeze_count()
    with collector_paused(for_imports=True):
        assert not gc.isenabled()
    imported = gc.get_freeze_count()
    assert imported
    with collector_paused(for_imports=True):
        later = [[number] for number in range(100)]
    assert len(later) == 100
    assert gc.get_freeze_count() <= imported
    gc.unfreeze()


def test_an_error_names_the_users_file(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "step.html"
    with pytest.raises(FileNotFoundError, match=re.escape(f"'{path}'") + "$"):
        write_file(str(path), b"")
