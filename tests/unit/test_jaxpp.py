"""The package itself: its names are loaded when they are first used, and no others are there."""

import subprocess
import sys

import pytest

import jaxpp
import jaxpp.api


def test_every_name_of_the_api() -> None:
    assert {name: getattr(jaxpp, name) for name in jaxpp.api.__all__} == {
        name: getattr(jaxpp.api, name) for name in jaxpp.api.__all__
    }
    assert {*jaxpp.api.__all__, "schedules", "runtime", "checkpoint", "__version__"} <= set(dir(jaxpp))
    unknown = set(dir(jaxpp)) - {*vars(jaxpp), *jaxpp.api.__all__}
    assert all(hasattr(jaxpp, name) for name in unknown)


# The ignored errors are tests as well: `make types` says if there is none.
def test_other_names_and_keywords() -> None:
    with pytest.raises(AttributeError, match=r"^module 'jaxpp' has no attribute 'nope'$"):
        jaxpp.nope  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(TypeError, match="stages"):
        jaxpp.Std1F1B(stages=4)  # pyright: ignore[reportCallIssue]


def test_nothing_is_imported_but_what_is_used() -> None:
    program = """
import sys
import jaxpp

def no_search(*arguments):
    raise AssertionError(f"the file system was searched for {arguments[0]}")

sys.meta_path[:], finders = [type("Finder", (), {"find_spec": no_search})], sys.meta_path[:]
assert not hasattr(jaxpp, "nope")
sys.meta_path[:] = finders
dir(jaxpp), jaxpp.schedules.names()
from jaxpp import schedules
assert not {"jax", "jaxlib", "jaxpp.api"} & {*sys.modules}
jaxpp.treduce
sys.meta_path[:] = [type("Finder", (), {"find_spec": no_search})]
jaxpp.treduce, jaxpp.api, jaxpp.runtime
assert "jax" in sys.modules and vars(jaxpp)["treduce"] is jaxpp.api.treduce
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
