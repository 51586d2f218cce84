"""The command line of gpt.py: its flags, and a short message for each that can't be."""

import argparse
import importlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax
from gpt_model import Config
from gpt_processes import join

from jaxpp import schedules

BATCH = 32
"""Sequences per step."""
LEARNING_RATES = {"adamw": 3e-3, "sgd": 0.1}
SPREAD = {"vocab-1f1b": 1, "vocab-v-half": 2}
"""Schedules that spread the vocabulary over the meshes, and the stages of layers on each."""


@dataclass(frozen=True)
class Options:
    """One attribute per flag; `--help` says what each means."""

    stages: int
    microbatches: int
    schedule: str
    data: int
    model: int
    processes: int
    process: int | None
    coordinator: str | None
    actors: int | None
    layers: int
    steps: int
    optimizer: str
    checkpoint: Path | None
    check: bool
    write: Path | None

    @property
    def platform(self) -> str:
        """The platform of the devices: JAX_PLATFORMS, or else as many virtual CPU devices as it takes."""
        return os.environ.get("JAX_PLATFORMS") or "cpu"

    @property
    def starts_others(self) -> bool:
        """Whether this process only starts the others."""
        return self.processes > 1 and self.coordinator is None

    @property
    def devices(self) -> int:
        """The number of devices in all."""
        return self.plan.meshes * self.data * self.model

    @property
    def is_auto(self) -> bool:
        """Whether the training chooses its schedule, and how many layers each stage has."""
        return self.schedule == "auto"

    @property
    def shards(self) -> int:
        """The number of meshes over which the vocabulary is spread, 0 where the last stage has it."""
        return self.plan.meshes if self.plan.placement.after and not self.exchange else 0

    @property
    def exchange(self) -> bool:
        """Whether late slices of the sequence have a part of their attention done on other meshes."""
        return self.plan.placement.after != () and self.plan.slices > 1

    @cached_property
    def plan(self) -> schedules.Schedule:
        """The schedule, with auto the first one. Raises ValueError when it doesn't exist for these numbers."""
        name = "1f1b" if self.is_auto else self.schedule
        layers = {"layers": max(self.layers // self.stages, 1)} if name.partition("{")[0] == "slimpipe" else {}
        made = partial(schedules.resolve, name, **layers)
        small = made(meshes=2, microbatches=4)
        per_mesh = 1 if small.name == "slimpipe" else SPREAD.get(small.name, small.stages // small.meshes)
        of_others = small.stages - per_mesh * small.meshes if small.placement.after else 0
        if small.placement.after and small.slices == 1 and of_others != small.meshes + 1:
            raise ValueError(f"--schedule {small.name} is for stages that are a graph: those of this model are a chain")
        if self.stages % per_mesh:
            raise ValueError(f"--stages ({self.stages}) must be a multiple of the stages per mesh ({per_mesh})")
        plan = made(meshes=self.stages // per_mesh, microbatches=self.microbatches)
        of_others = plan.stages - per_mesh * plan.meshes if plan.placement.after else 0
        for what, wanted, found in (
            ("stages", self.stages, plan.stages - of_others),
            ("microbatches", self.microbatches, plan.microbatches),
        ):
            if found != wanted:  # in a file
                raise ValueError(f"--{what} ({wanted}) must be {found}, as in {self.schedule}")
        return plan


def parse(arguments: Sequence[str] | None = None) -> tuple[Options, list[Any]]:
    """Returns the flags, and the devices to run on, none when it starts others. A mistake exits with a message."""
    parser = _parser()
    named = parser.parse_args(arguments)
    options = Options(**{field.name: getattr(named, field.name) for field in fields(Options)})
    try:
        _check(options)
        return options, [] if options.starts_others else _find_devices(options)
    except ValueError as error:
        parser.error(str(error))


def _check(options: Options) -> None:
    """Raises ValueError for the first flags that don't go together."""
    if options.is_auto and options.layers + 2 < options.stages:
        raise ValueError(f"--layers ({options.layers}) and two more must be at least --stages ({options.stages})")
    divisions = (
        ("--layers", options.layers, "--stages", 1 if options.is_auto else options.stages),
        ("the batch", BATCH, "--microbatches", options.microbatches),
        ("the batch / --microbatches", BATCH // options.microbatches, "--data", options.data),
        ("the heads", Config.heads, "--model", options.model),
        ("the sequence", Config.sequence, "the slices", options.plan.slices),
        ("meshes x --data x --model", options.devices, "--processes", options.processes),
    )
    for name, value, by, divisor in divisions:
        if value % divisor:
            raise ValueError(f"{name} ({value}) must be a multiple of {by} ({divisor})")
    if (options.coordinator or "auto") != "auto" and options.process is None:
        raise ValueError("--coordinator needs --process, the number of this process")
    if options.process is not None and options.process >= options.processes:
        raise ValueError(f"--process ({options.process}) must be less than --processes ({options.processes})")
    if options.actors and options.processes > 1:
        raise ValueError("the devices are either of --actors or of --processes")
    if options.checkpoint:
        try:
            importlib.import_module("jaxpp.checkpoint")
        except ModuleNotFoundError as error:
            raise ValueError(f"--checkpoint: {error}") from None
    if options.write and options.write.exists() and not options.write.is_dir():
        raise ValueError(f"--write: {options.write} is no folder")


def _find_devices(options: Options) -> list[Any]:
    """Asks JAX for devices. It looks for them when it is first asked for one, so this comes before any array.

    Raises ValueError where there are too few.
    """
    if options.actors:
        jax.config.update("jax_platforms", "cpu")  # the devices are the actors'
        return jax.devices()
    jax.config.update("jax_platforms", options.platform)
    if options.platform == "cpu":
        jax.config.update("jax_num_cpu_devices", options.devices // options.processes)
    elif options.check:  # many accelerators round the factors of float32 products, unless told not to
        jax.config.update("jax_default_matmul_precision", "float32")
    if options.coordinator:
        join(options.coordinator, options.processes, options.process)
    try:
        found = jax.devices()
    except (RuntimeError, AssertionError):  # an AssertionError where JAX knows the name but lacks the plugin
        raise ValueError(f"JAX_PLATFORMS={options.platform}: JAX finds no such devices") from None
    if len(found) < options.devices:
        raise ValueError(f"meshes x --data x --model is {options.devices} devices; {options.platform} has {len(found)}")
    return found[: options.devices]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        usage="%(prog)s [options]",
        description="Train a small GPT as a pipeline of stages, each on its own mesh of devices.",
        epilog="JAX_PLATFORMS says where; without it, on as many virtual CPU devices as it takes.",
        allow_abbrev=False,
    )
    _number(parser, "--stages", 4, "pipeline stages")
    _number(parser, "--microbatches", 8, f"parts of the batch of {BATCH} sequences that flow through the stages")
    parser.add_argument(
        "--schedule",
        metavar="NAME|FILE",
        default="1f1b",
        help="as jaxpp-schedule takes it: a name, gis{chunks=4}, or a grid in a file; or auto, which measures "
        "and takes what is fastest (default: 1f1b)",
    )
    _number(parser, "--data", 2, "data parallelism inside each stage")
    _number(parser, "--model", 1, "tensor parallelism inside each stage")
    _number(parser, "--processes", 1, "processes that hold the devices; this one starts them")
    parser.add_argument(
        "--coordinator", metavar="HOST:PORT", help="don't start others, join them: where process 0 listens, or auto"
    )
    _number(parser, "--process", None, "the number of this process, with --coordinator", least=0)
    _number(parser, "--actors", None, "actors of Ray that hold the devices")
    _number(parser, "--layers", 8, "transformer blocks")
    _number(parser, "--steps", 20, "training steps")
    parser.add_argument("--optimizer", choices=tuple(LEARNING_RATES), default="adamw", help="(default: adamw)")
    parser.add_argument(
        "--checkpoint", type=Path, metavar="DIR", help="go on from the latest checkpoint there, and save there"
    )
    parser.add_argument("--check", action="store_true", help="compare with plain jax.jit on one device")
    parser.add_argument(
        "--write", type=Path, metavar="DIR", help="write step.mlir, a Chrome trace step.json, and costs.toml there"
    )
    return parser


def _number(parser: argparse.ArgumentParser, flag: str, default: int | None, text: str, least: int = 1) -> None:
    def whole(value: str) -> int:
        if not (value.isascii() and value.isdecimal()) or not least <= int(value) < 2**31:
            raise argparse.ArgumentTypeError(f"{value!r} is not a whole number of at least {least}, below 2**31")
        return int(value)

    text = text if default is None else f"{text} (default: {default})"
    parser.add_argument(flag, type=whole, default=default, metavar="N", help=text)
