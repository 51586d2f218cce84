"""The stage programs of the examples, and of the models of other tests: what these compare is compiled instead."""

import importlib
import inspect
import sys
from pathlib import Path
from types import ModuleType

import jax
import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "examples"))
MODELS = (
    "branches",
    "frameworks",
    "loops",
    "models",
    "parallel_layers",
    "recompute",
    "scanned_layers",
    "sharding",
    "shared_weights",
    "slices",
    "split_backward",
    "stacked_layers",
    "train_loop",
    "two_homes",
    "uneven_meshes",
    "vocabulary",
)
EXAMPLES = {
    "delayed": [],
    "two_towers": [],
    "gpt": ["--stages", "4", "--data", "2", "--model", "2"],
}

pytestmark = pytest.mark.usefixtures("absent")


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpt_options._find_devices", lambda options: jax.devices()[: options.devices])  # pyright: ignore[reportUnknownLambdaType]
    importlib.import_module(name).main(EXAMPLES[name])


@pytest.mark.parametrize(
    "path", sorted((ROOT / "examples" / "models").glob("*_pipelined.py")), ids=lambda path: path.stem
)
def test_pipelined_example(path: Path) -> None:
    importlib.import_module(f"models.{path.stem}").train(1)


def _comparisons(module: ModuleType) -> dict[str, object]:
    """The tests of a module that compare a step with plain `jax.jit`."""
    calls = ("check(", "check_loss(", "check_step(")
    return {
        f"{name}_of_{module.__name__.rpartition('test_')[2]}": function
        for name, function in vars(module).items()
        if name.startswith("test_") and any(f" {call}" in inspect.getsource(function) for call in calls)
    }


for _model in MODELS:
    globals().update(_comparisons(importlib.import_module(f"unit.end_to_end.test_{_model}")))
