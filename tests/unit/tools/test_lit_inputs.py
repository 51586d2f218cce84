"""Every lit input that is a whole module computes the same before and after the passes that its RUN lines name."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import runline

from jaxpp.tools import opt, opt_run
from jaxpp.validation import Validate

LIT = Path(__file__).parents[2] / "lit"
# What can't be run here: a part of a module, an operation that XLA has on other platforms only, a callback of nobody's,
# and modules of Shardy's dialect, which `test_shardy_mpmd.py` runs.
NOT_RUN = (
    "it has neither a public function @main nor mesh functions",
    "is not supported by XLA:CPU",
    "!mpmd.mesh_tensor<",
    "'mpmd.named_computation' op unsupported op for export to XLA",
    "custom call @print, for which nothing is registered on CPUs",
)


def runs() -> Iterator[tuple[str, tuple[str, ...]]]:
    """(what to call it, arguments) of the commands that run passes on the test's own file and expect success."""
    for path in sorted(LIT.rglob("*.mlir")):
        if path.parent.name == "Inputs":
            continue
        for pipeline in runline.pipelines(path, Path("/dev/null")):
            command = pipeline[0]
            own = command.tool == "jaxpp-opt" and str(path) in command.arguments
            if own and not command.expect_failure and {"-p", "--passes", "--pipeline"} & set(command.arguments):
                arguments = tuple(word for word in command.arguments if word != "--validate")
                name = " ".join(word for word in arguments if word != str(path))
                yield f"{path.relative_to(LIT)} {name}", arguments


class Here(Validate):
    """Runs modules in this process, in which XLA and its compiled functions are already there: ten times as fast."""

    def __init__(self, *arguments: Any, apart: bool) -> None:
        super().__init__(*arguments)


@pytest.mark.parametrize("arguments", [pytest.param(arguments, id=name) for name, arguments in runs()])
def test_the_module_computes_the_same(arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opt_run, "Validate", Here)
    _, _, err = runline.call(opt.main, *arguments, "--validate", "-o", "/dev/null").texts
    errors = [line for line in err.splitlines() if "error: " in line and not any(each in line for each in NOT_RUN)]
    assert not errors, err
