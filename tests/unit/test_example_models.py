"""examples/models: each script of one device, its pipeline, and the page that shows all lines in which they differ."""

import contextlib
import importlib
import io
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from unit.pairs import ROOT, added, difference, shown

FOLDER = ROOT / "examples" / "models"
PAGES = {
    "decoder": "models",
    "vision": "models",
    "towers": "models",
    "flax_nnx": "frameworks",
    "equinox_mlp": "frameworks",
    "experts": "experts",
    "lora": "adapters",
    "grpo": "two-models",
}
MOST = 10
"""The most lines that a pipeline adds or changes."""


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.chdir(tmp_path)


def module(name: str) -> Any:
    for package, user in (("flax", "flax_nnx"), ("equinox", "equinox_mlp")):
        if name.startswith(user):
            pytest.importorskip(package)
    return importlib.import_module(name)


@pytest.mark.parametrize("name", PAGES)
def test_both_scripts_compute_the_same(name: str) -> None:
    """The losses, and all parameters in units of the largest of their array."""
    (losses, params), (others, found) = (module(each).train(3) for each in (name, f"{name}_pipelined"))
    np.testing.assert_allclose(others, losses, rtol=1e-5, atol=1e-6)
    for one, other in zip(*map(jax.tree.leaves, jax.device_get((params, found))), strict=True):
        np.testing.assert_allclose(other, one, rtol=0, atol=1e-5 * np.abs(one).max())


@pytest.mark.parametrize("name", PAGES)
def test_too_few_devices(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    script = module(f"{name}_pipelined")
    one: list[Any] = jax.devices()[:1]
    monkeypatch.setattr(jax, "devices", lambda: one)
    with pytest.raises(ValueError, match=r" devices, but JAX has 1 \(cpu\); .* JAX_NUM_CPU_DEVICES=[48]$"):
        script.train(1)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_the_lines_in_which_they_differ(name: str) -> None:
    lines = difference(FOLDER / f"{name}.py", FOLDER / f"{name}_pipelined.py")
    assert lines in shown(PAGES[name]), f"docs/{PAGES[name]}.md must show\n\n{lines}"
    assert added(lines) <= MOST


def test_every_pair_is_tested() -> None:
    names = {path.stem for path in FOLDER.glob("*.py")}
    assert names == {each for name in PAGES for each in (name, f"{name}_pipelined")}


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("flax_nnx", r"(loss \d\.\d+\n){2}"),
        ("experts", r"(loss \d\.\d+, .*\n){6}NamedSharding\(.*P\('expert',?\).*\n(loss \d\.\d+, .*\n){3}"),
        ("lora", r"train_step: 2 stages on 2 meshes of 2 devices(.*\n)*"),
        ("grpo", r"\[2, 3\]\n"),
    ],
)
def test_the_blocks_of_a_page_go_on_from_its_pipeline(name: str, printed: str) -> None:
    module(name)  # it is skipped without its framework
    text = (FOLDER / f"{name}_pipelined.py").read_text(encoding="utf-8")
    assert re.fullmatch(printed, run(PAGES[name], text))


def test_the_recipes_for_models_are_a_program() -> None:
    """Which compares each step with plain `jax.jit`."""
    printed = run("recipes-models", "")
    assert re.fullmatch(r"(packed|captions|contrast|two tokens): loss \d\.\d+\n" * 4, printed)


def run(page: str, text: str) -> str:
    """What the blocks of a page print, behind what `text` defines."""
    content = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", content, re.MULTILINE | re.DOTALL)
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(compile("\n".join([text, *blocks]), f"{page}.md", "exec"), {"__name__": "a_page"})
    return output.getvalue()
