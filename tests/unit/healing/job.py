"""examples/healing.py in two processes, of which the first dies once: what `test_healing.py` runs."""

import json
import os
import runpy
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax

import jaxpp
from jaxpp import healing
from jaxpp.healing import training
from jaxpp.healing.member import Membership

EXAMPLE = runpy.run_path(str(Path(__file__).parents[3] / "examples" / "healing.py"))
EXAMPLE["loss"].__globals__["LAYERS"] = 6  # half as many; one, two and three stages share them

STEPS, DIES, WAITS = 9, 3, 5
"""How many steps; after which one the first process dies; after which one the other waits until it is back.
It comes back after a step that the other has made alone."""


class Joining(Membership):
    """A membership that writes a file when it has asked to take part."""

    def __init__(self, came_back: Path) -> None:
        super().__init__()
        came_back.touch()


class CountedStep:
    """The step of the example, which notes for how many processes it is traced."""

    def __init__(self, notes: Path) -> None:
        self._step, self._notes = EXAMPLE["make_step"](), notes

    def lower(self, *arguments: Any) -> Any:
        with self._notes.open("a") as file:
            print(jax.process_count(), file=file)
        return self._step.lower(*arguments)


def main(folder: Path) -> None:
    died, alone, came_back = (folder / name for name in ("died", "alone", "came back"))
    if died.exists():
        while not alone.exists():
            time.sleep(0.02)
        training.Membership = partial(Joining, came_back)

    def on_state(number: int, state: Any) -> None:
        made = int(jaxpp.fetch(state["step"]))
        with (folder / "states").open("a") as file:
            print(f"{number}:{made}", file=file)

    def on_step(number: int, output: Any) -> None:
        if number == DIES and jax.process_index() == 0 and not died.exists():
            died.touch()
            time.sleep(1.0)  # whatever is kept of this step would be by now
            os.kill(os.getpid(), signal.SIGKILL)
        loss = float(jaxpp.fetch(output))
        if jax.process_count() == 1:
            alone.touch()
        if jax.process_index() == 0:
            print(json.dumps({"step": number, "loss": loss, "processes": jax.process_count()}), flush=True)
        while number == WAITS and not came_back.exists():
            time.sleep(0.02)
        time.sleep(0.5 if number > WAITS and jax.process_count() == 1 else 0)

    first_state, batch = (EXAMPLE[name] for name in ("first_state", "batch"))
    make_step = partial(CountedStep, folder / "lowered")
    state = healing.train(
        make_step, first_state, batch, STEPS, on_step=on_step, on_state=on_state, plans=folder / "plans"
    )
    found = jaxpp.fetch({**state, "key": jax.random.key_data(state["key"])})
    if jax.process_index() == 0:
        last = [found["step"].item(), found["key"].tolist(), found["weights"][1].tolist()]
        print(json.dumps({"last": last}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
