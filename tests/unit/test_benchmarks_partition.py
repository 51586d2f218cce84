"""Published models are cut better than into equal stages."""

import importlib
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("partition")


def test_the_models_have_the_size_that_is_published(script: Any) -> None:
    """Billions of parameters that a token meets, without the embedding: half of the FLOPs of products with weights."""
    sizes = {name: sum(layer.weights for layer in make().row) / 2e9 for name, make in script.MODELS.items()}
    expected = {
        **{"gemma-2b": 2.5, "gemma-7b": 8.5, "gemma-2-2b": 2.6, "gemma-2-9b": 9.2, "gemma-3-1b": 1.0},
        **{"deepseek-v2-lite": 2.4, "deepseek-v3": 38.5, "nemotron-h-8b": 7.6},
    }
    assert sizes == pytest.approx(expected, rel=0.06)


@pytest.mark.parametrize(("model", "gain"), [("gemma-2b", 1.48), ("gemma-2-2b", 1.43)])
def test_some_models_on_eight_meshes(script: Any, model: str, gain: float) -> None:
    row = script.measured(model, 8, 32, 0.2)
    assert row.gain > gain
    assert sum(row.found.cuts) == len(script.MODELS[model]().row)
