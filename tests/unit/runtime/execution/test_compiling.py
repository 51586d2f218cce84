"""One compile for several meshes: what happens where a compiled function can't be loaded for other devices."""

from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import jax
import pytest
from unit.runtime.execution.test_execute import Compiled, assert_close, compiled, enabled_cache
from unit.runtime.programs import Pipeline

from jaxpp.runtime.execution.compiling import TRITON_FAILS

__all__ = ["compiled"]  # the fixture

PIPELINE = Pipeline(3, 1)


@pytest.fixture
def load_fails(monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception], None]:
    """Makes every load of a compiled function for other devices raise."""

    def let_fail(error: Exception) -> None:
        def fail(*_: object) -> NoReturn:
            raise error

        monkeypatch.setattr("jaxpp._compat.load_from_cache", lambda *_: None)  # pyright: ignore[reportUnknownLambdaType]
        monkeypatch.setattr("jaxpp._compat.load_executable", fail)

    return let_fail


def run() -> None:
    assert_close(PIPELINE.executable()(PIPELINE.arguments()), PIPELINE.expected(PIPELINE.arguments()))


def test_an_unexpected_failure_is_told_once(load_fails: Callable[[Exception], None], compiled: Compiled) -> None:
    load_fails(jax.errors.JaxRuntimeError("INTERNAL: so it is"))
    message = (
        r"^@backward and 3 more: compiled once for each mesh, since what was compiled for one could not be loaded for "
        r"another: JaxRuntimeError: INTERNAL: so it is$"
    )
    with pytest.warns(UserWarning, match=message) as warned:
        run()
    assert len(warned) == 1
    assert compiled == {"zeros": 3, "first": 1, "forward": 2, "backward": 3, "loss": 1, "sgd": 3}


def test_a_backend_that_cannot_is_told_nothing(load_fails: Callable[[Exception], None]) -> None:
    load_fails(jax.errors.JaxRuntimeError("UNIMPLEMENTED: no"))
    run()


def test_a_mistake_of_ours_is_an_error(load_fails: Callable[[Exception], None]) -> None:
    load_fails(TypeError("one argument too many"))
    with pytest.raises(TypeError, match="one argument too many") as caught:
        run()
    assert caught.value.__notes__[0].startswith("jaxpp: while compiling @")


def test_what_to_try_where_triton_fails(load_fails: Callable[[Exception], None]) -> None:
    load_fails(TypeError(f"INTERNAL: {TRITON_FAILS} that satisfy hlo: %dot.10"))
    with pytest.raises(TypeError) as caught:
        run()
    text = "jaxpp: plain jax.jit may end so too; try compiler_options={'xla_gpu_enable_triton_gemm': False}"
    assert caught.value.__notes__[1] == text


def test_a_damaged_cache_is_told_by_jax(tmp_path: Path) -> None:
    with enabled_cache(tmp_path):
        run()
        for path in tmp_path.glob("*-cache"):
            path.write_bytes(b"damaged")
        with pytest.warns(UserWarning, match="^Error reading persistent compilation cache entry for '"):
            run()
