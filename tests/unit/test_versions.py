"""What is said under a version of JAX that nobody tried."""

import subprocess
import sys
import warnings

import jax
import pytest

from jaxpp import _compat, _versions


def test_an_older_jax_or_one_of_those_tried_gets_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for version in ("0.9", "0.12.0", "0.12.0.1"):
            set_version(monkeypatch, version)
            _versions.warn_of_newer_jax.__wrapped__()


def test_a_newer_jax_gets_one_line_of_warning_when_it_is_first_used() -> None:
    newer = "import jax; jax.__version__, jax.__version_info__ = '0.13.0', (0, 13, 0)"
    program = "import jaxpp.schedules; print('schedules'); jaxpp.treduce; jaxpp.runtime; import jaxpp.lowering"
    done = subprocess.run(
        [sys.executable, "-c", f"{newer}\nimport sys; sys.stdout = sys.stderr\n{program}"],
        capture_output=True,
        text=True,
        check=True,
    )
    tried = ", ".join(_versions.TRIED)
    first, second = done.stderr.splitlines()
    assert first == "schedules"
    assert second.endswith(f"UserWarning: jax 0.13.0 is newer than those that jaxpp was tried with ({tried})")


def test_a_missing_name_is_one_short_error(monkeypatch: pytest.MonkeyPatch) -> None:
    set_version(monkeypatch, "0.13.0")
    monkeypatch.delattr("jax.extend.source_info_util.register_exclusion")
    with pytest.raises(_versions.UnsupportedJaxError) as raised:
        _compat.hide_frames("x")
    assert str(raised.value) == (
        "jaxpp does not work with jax 0.13.0: module 'jax.extend.source_info_util' has no attribute "
        "'register_exclusion'; it was tried with 0.10.2, 0.11.2, 0.12.0.1: pip install 'jax<=0.12.0.1'"
    )


def test_another_signature_and_a_missing_module_are_such_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    set_version(monkeypatch, "0.10.0")
    monkeypatch.setattr("jax.extend.source_info_util.register_exclusion", lambda: None)
    with pytest.raises(_versions.UnsupportedJaxError, match=r"jax 0\.10\.0: .* takes 0 positional arguments but 1 was"):
        _compat.hide_frames("x")
    monkeypatch.setitem(sys.modules, "jax.experimental.transfer", None)
    monkeypatch.delattr("jax.experimental.transfer", raising=False)
    with pytest.raises(_versions.UnsupportedJaxError, match=r"cannot import name 'transfer'|import of jax\.exp"):
        _compat.error_array(None, "x")


def test_errors_of_others_stay_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_a_user(_: str) -> None:
        raise TypeError("of a user")

    monkeypatch.setattr("jax.extend.source_info_util.register_exclusion", of_a_user)
    set_version(monkeypatch, "0.13.0")
    with pytest.raises(TypeError, match="of a user"):
        _compat.hide_frames("x")
    monkeypatch.undo()
    monkeypatch.delattr("jax.extend.source_info_util.register_exclusion")  # under a version that was tried: our bug
    with pytest.raises(AttributeError):
        _compat.hide_frames("x")


def set_version(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(jax, "__version__", version)
    monkeypatch.setattr(jax, "__version_info__", tuple(int(part) for part in version.split(".")))
