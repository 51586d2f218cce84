"""What the lit tests read can be run: the dumped models are validated, and every hand-written module is a whole one."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import runline
from jaxlib.mlir import ir

from jaxpp._compat import make_context
from jaxpp.hlo_passes import PASSES, run_passes
from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.pipelines import mpmd, with_verification
from jaxpp.ir import attributes as at
from jaxpp.ir.functions import functions
from jaxpp.tools import source
from jaxpp.validation import Validate

LIT = Path(__file__).parents[2] / "lit"
FOLDERS = sorted(name.replace("-", "_") for name in PASSES)

# Parts of lit tests, `folder/file.mlir:part` (parts counted from 0), that nobody can run, each with the reason.
FRAGMENTS: dict[str, str] = {}


def parts() -> Iterator[tuple[str, bytes]]:
    """(name, text) of each module in a test of a pass that expects success."""
    for path in sorted(path for folder in FOLDERS for path in (LIT / folder).glob("*.mlir")):
        runs = runline.pipelines(path, Path("/dev/null"))
        own = [command for command, *_ in runs if str(path) in command.arguments and not command.expect_failure]
        if own:
            data = path.read_bytes()
            split = any("--split-input-file" in command.arguments for command in own)
            for number, part in enumerate(source.split(data) if split else [data]):
                yield f"{path.relative_to(LIT)}:{number}", part


@pytest.mark.parametrize(("name", "text"), [pytest.param(*part, id=part[0]) for part in parts()])
def test_a_module_is_one_that_validation_can_run(name: str, text: bytes) -> None:
    """What `--validate` skips (tests/unit/tools/test_lit_inputs.py) has to stand in the list, and nothing else."""
    assert is_whole(text) != (name in FRAGMENTS), FRAGMENTS.get(name, "make it a whole module, or say why it is none")


def test_the_list_of_fragments_names_parts_that_exist() -> None:
    assert set(FRAGMENTS) <= {name for name, _ in parts()}


class ValidateFolders(Validate):
    """Runs the module after the last pass of each folder: each run takes XLA a second."""

    def __init__(self, passes: Sequence[Pass]) -> None:
        super().__init__()
        self._last_passes = list({type(each).__module__.split(".")[-2]: each for each in passes}.values())

    def after(self, step: Pass, module: ir.Module) -> None:
        if any(step is each for each in self._last_passes):
            super().after(step, module)


def test_a_dumped_model_computes_the_same_after_the_passes_of_each_folder() -> None:
    """The one on several devices: `gpt.mlir` is the same model on one, where fewer passes have something to do.

    Its transfers are in the order of the strictest transport; `opt/validate.mlir` has the usual one.
    """
    passes = mpmd(transport="pair")
    validate = ValidateFolders(passes)
    with make_context():
        module = ir.Module.parse((LIT / "Inputs" / "gpt_data.mlir").read_text(encoding="utf-8"))
        run_passes(module, passes, [validate])
    assert "results agree after each of 3 passes" in validate.summary()
    assert "warning" not in validate.summary()


@pytest.mark.parametrize("folder", FOLDERS)
def test_each_pass_has_a_test_to_read_first_and_one_on_a_real_model(folder: str) -> None:
    """The input of passes outside of the pipeline is none of ours: unit tests lower models for them."""
    names = {path.name for path in (LIT / folder).glob("*.mlir")}
    in_pipeline = any(step.name.replace("-", "_") == folder for step in with_verification(mpmd()))
    assert {"basic.mlir", *(["gpt.mlir"] if in_pipeline else [])} <= names


def is_whole(text: bytes) -> bool:
    with make_context():
        module = ir.Module.parse(text.decode())  # it has to outlive what is read of it
        by_name = functions(module)
        main = by_name.get("main")
        is_step = main is not None and ir.StringAttr(main.attributes["sym_visibility"]).value == "public"
        return is_step or any(at.MESH in function.attributes for function in by_name.values())
