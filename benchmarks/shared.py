"""Flags, turns, tables and models of several benchmarks."""

import argparse
import importlib
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
EXAMPLES = Path(__file__).parents[1] / "examples"


def parser(text: str | None, **numbers: int) -> argparse.ArgumentParser:
    """Returns a parser with the text of a script, and a flag for each of these whole numbers."""
    made = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in numbers.items():
        made.add_argument(f"--{name}", type=int, default=default)
    return made


def example(name: str) -> Any:
    """Imports a module of `examples/`."""
    if str(EXAMPLES) not in sys.path:
        sys.path.append(str(EXAMPLES))
    return importlib.import_module(name)


def timed(run: Callable[[], Any]) -> float:
    """Returns the seconds until all arrays that `run` returns are ready."""
    jax, begin = importlib.import_module("jax"), time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - begin


def sgd_step(model: Any, schedule: Any, rate: float, parameters: Any, text: Any) -> Any:
    """Returns the parameters of `gpt_model` after a step of SGD, and its loss."""
    jax, jaxpp, loss = importlib.import_module("jax"), importlib.import_module("jaxpp"), example("gpt_model").loss

    def updated(weight: Any, gradient: Any) -> Any:
        return weight - rate / len(text) * gradient

    one = partial(jax.value_and_grad(partial(loss, model)), parameters)
    losses, gradients = jaxpp.treduce(one, text, schedule=schedule, operation=(jaxpp.Concat(), jaxpp.Add))
    return jax.tree.map(updated, parameters, gradients), losses.mean()


def by_turns(runs: Mapping[str, Callable[[], T]], repeat: int) -> dict[str, list[T]]:
    """Calls all runs in turns, and returns what each returned, without a first turn that warms up."""
    turns = [{name: run() for name, run in runs.items()} for _ in range(repeat + 1)]
    return {name: [turn[name] for turn in turns[1:]] for name in runs}


def ratios(times: Iterable[float], others: Iterable[float]) -> list[float]:
    """Returns the ratios turn by turn."""
    return [one / other for one, other in zip(times, others, strict=True)]


def spread(values: Iterable[float]) -> str:
    """Returns the median, the least and the most, as `0.85 (0.82 to 0.91)`."""
    found = sorted(values)
    return f"{statistics.median(found):.3g} ({found[0]:.3g} to {found[-1]:.3g})" if found else ""


def show(heads: Sequence[str], rows: Iterable[Sequence[object]], words: int = 1) -> None:
    """Prints a table, row by row as they are made. Its first columns are words, the others numbers."""
    print(f"| {' | '.join(heads)} |\n|{'---|' * words}{'---:|' * (len(heads) - words)}", flush=True)
    for row in rows:
        print(f"| {' | '.join(map(str, row))} |", flush=True)
