"""The package itself: its names are loaded when they are first used, and no others are there."""

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import jaxpp
import jaxpp.api
import jaxpp.names


def test_every_name() -> None:
    names = {name for name in vars(jaxpp.names) if not name.startswith("_")}
    assert names == vars(jaxpp)["_NAMES"]
    assert len(names) <= 32
    assert {*names, "schedules", "runtime", "checkpoint", "__version__"} <= set(dir(jaxpp))
    unknown = set(dir(jaxpp)) - {*vars(jaxpp), *names}
    assert all(hasattr(jaxpp, name) for name in unknown)
    assert {name: getattr(jaxpp, name) for name in names} == {name: getattr(jaxpp.api, name) for name in names}


def test_names_that_moved() -> None:
    """They still work, with a warning. Those that JaxPP has are in `jaxpp.api` too."""
    moved: dict[str, str] = vars(jaxpp)["_MOVED"]
    for name, module in moved.items():
        message = f"^jaxpp.{name} is deprecated: it is jaxpp.{module}.{name}$"
        with pytest.warns(DeprecationWarning, match=message) as warned:
            found = getattr(jaxpp, name)
        assert found is getattr(import_module(f"jaxpp.{module}"), name)
        assert warned[0].filename == __file__
    known = {name for name, module in moved.items() if module in ("api", "schedules")}
    assert {name for name in vars(jaxpp.api) if not name.startswith("_")} == known | vars(jaxpp)["_NAMES"]
    text = (Path(__file__).parents[2] / "docs" / "jaxpp-compatibility.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| `jaxpp\.(\w+)`[^|]* \| (.*) \|$", text, re.M)
    assert moved == {name: module for module, names in table for name in re.findall(r"`(\w+)`", names)}


# The ignored errors are tests as well: `make types` says if there is none.
def test_other_names_and_keywords() -> None:
    with pytest.raises(AttributeError, match=r"^module 'jaxpp' has no attribute 'nope'$"):
        jaxpp.nope  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(TypeError, match="stages"):
        jaxpp.schedules.Std1F1B(stages=4)  # pyright: ignore[reportCallIssue]


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
assert not {"jax", "jaxlib", "jaxpp.names"} & {*sys.modules}
jaxpp.treduce
sys.meta_path[:] = [type("Finder", (), {"find_spec": no_search})]
jaxpp.treduce, jaxpp.runtime
assert "jax" in sys.modules and vars(jaxpp)["treduce"] is jaxpp.names.treduce
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_to_import_it_changes_nothing_of_jax() -> None:
    """Only what JAX has registries for is added: rules of our own primitives, folders that tracebacks leave out."""
    program = """
import importlib, sys
import jax, jax.distributed, jax.experimental.checkify, jax.experimental.transfer, jax.extend
import jax.interpreters.batching, jax.monitoring

with jax.debug_key_reuse(True):
    jax.random.key(0)  # imports what has the rules for keys

def look():
    found = {}
    for module in [module for name, module in sys.modules.items() if name.partition(".")[0] in ("jax", "jaxlib")]:
        for name, value in list(vars(module).items()):
            found[module.__name__, name] = {str(id(value))}
            if isinstance(value, (dict, list, set)):
                found[module.__name__, name, "entries"] = {*map(repr, value)}
            if isinstance(value, type):
                found[module.__name__, name, "members"] = {*vars(value)}
    return found

def news(*names):
    before, config = look(), dict(jax.config.values)
    for name in names:
        importlib.import_module(name)
    after = look()
    assert dict(jax.config.values) == config and not any(before[key] - after[key] for key in before)
    return {entry for key in before for entry in after[key] - before[key]}

assert not news("jaxpp", "jaxpp.schedules", "jaxpp.hlo_passes", "jaxpp.runtime")
added = news("jaxpp.lowering", "jaxpp.names", "jaxpp.array", "jaxpp.distributed")
primitives = {"jaxpp_mark", "jaxpp_unit", "jaxpp_microbatch_loop", "jaxpp_step"}
assert {entry for entry in added if "/" not in entry} == primitives, added
assert len(added) == 5
added = news("jaxpp.api")
assert added == {"first_mpmd_replica", "is_partially_addressable", "to_mpmd_local_array"}, added
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
