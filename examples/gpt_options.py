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
from gpt_processes import join

from jaxpp import schedules

TEXT = Path(__file__).parent / "data" / "sonnets.txt"
LEARNING_RATES = {"adamw": 3e-3, "sgd": 0.1}
SPREAD = {
    "vocab-1f1b": 1,
    "vocab-v-half": 2,
}  # what spreads the vocabulary over the meshes, and stages of layers on each


@dataclass(frozen=True)
class Options:
    """One attribute per flag; `--help` says what each means."""

    stages: int
    microbatches: int
    schedule: str
    cuts: tuple[int, ...] | None
    chunks: int | None
    slices: int | None
    data: int
    model: int
    platform: str
    processes: int
    process: int | None
    coordinator: str | None
    ray: bool
    actors: int | None
    layers: int
    width: int
    heads: int
    sequence: int
    dtype: str
    vocabulary: int
    steps: int
    batch: int
    optimizer: str
    learning_rate: float
    seed: int
    checkpoint: Path | None
    save_every: int
    check: bool
    trace: Path | None
    costs: Path | None
    dump: Path | None

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
    def marks_layers(self) -> bool:
        """Whether the model marks each block, and what stands before and after them, to be shared out to stages."""
        return self.is_auto or self.cuts is not None

    @property
    def shards(self) -> int:
        """Over how many meshes the vocabulary is spread, 0 where the last stage has it."""
        return self.plan.meshes if self.plan.placement.after and not self.exchange else 0

    @property
    def exchange(self) -> bool:
        """Whether late slices of the sequence have a part of their attention done on other meshes."""
        return self.plan.placement.after != () and self.plan.slices > 1

    @cached_property
    def plan(self) -> schedules.Schedule:
        """What each mesh does, at first. Raises ValueError when the schedule doesn't exist for these numbers."""
        name = "1f1b" if self.is_auto else self.schedule
        given = {"chunks": self.chunks, "slices": self.slices}
        if name.partition("{")[0] == "slimpipe":
            given["layers"] = max(self.layers // self.stages, 1)
        made = partial(schedules.resolve, name, **{key: value for key, value in given.items() if value is not None})
        small = made(meshes=2, microbatches=4)
        per_mesh = 1 if small.name == "slimpipe" else SPREAD.get(small.name, small.stages // small.meshes)
        of_others = small.stages - per_mesh * small.meshes if small.placement.after else 0
        if small.placement.after and small.slices == 1 and of_others != small.meshes + 1:
            raise ValueError(f"--schedule {small.name} is for stages that are a graph: those of this model are a chain")
        if self.stages % per_mesh:
            raise ValueError(f"--stages ({self.stages}) must be a multiple of --chunks ({per_mesh})")
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
    """The flags, and the devices to run on, none when it starts others. A mistake ends it: a message, exit code 2."""
    parser = _parser()
    named = parser.parse_args(arguments)
    if named.learning_rate is None:
        named.learning_rate = LEARNING_RATES[named.optimizer]
    options = Options(**{field.name: getattr(named, field.name) for field in fields(Options)})
    try:
        _check(options)
        return options, [] if options.starts_others else _find_devices(options)
    except ValueError as error:
        parser.error(str(error))


def _check(options: Options) -> None:
    """Raises ValueError for the first flags that don't go together."""
    per_microbatch = options.batch // options.microbatches
    if options.is_auto and options.chunks:
        raise ValueError("--schedule auto chooses how many stages each mesh has: leave out --chunks")
    if options.is_auto and options.layers + 2 < options.stages:
        raise ValueError(f"--layers ({options.layers}) and two more must be at least --stages ({options.stages})")
    if options.is_auto and options.slices:
        raise ValueError("--schedule auto takes whole sequences: leave out --slices")
    if options.cuts:
        _check_cuts(options, options.cuts)
    divisions = (
        ("--layers", options.layers, "--stages", 1 if options.marks_layers else options.stages),
        ("--batch", options.batch, "--microbatches", options.microbatches),
        ("--batch / --microbatches", per_microbatch, "--data", options.data),
        ("--width", options.width, "--heads", options.heads),
        ("--heads", options.heads, "--model", options.model),
        ("--sequence", options.sequence, "--slices", options.plan.slices),
        ("meshes x --data x --model", options.devices, "--processes", options.processes),
    )
    for name, value, by, divisor in divisions:
        if value % divisor:
            raise ValueError(f"{name} ({value}) must be a multiple of {by} ({divisor})")
    _ = options.plan
    if (options.coordinator or "auto") != "auto" and options.process is None:
        raise ValueError("--coordinator needs --process, the number of this process")
    if options.process is not None and options.process >= options.processes:
        raise ValueError(f"--process ({options.process}) must be less than --processes ({options.processes})")
    if options.ray and options.processes > 1:
        raise ValueError("--ray has --actors, not --processes")
    if options.actors and not options.ray:
        raise ValueError("--actors needs --ray")
    size = TEXT.stat().st_size
    if options.sequence >= size:
        raise ValueError(f"--sequence ({options.sequence}) must be shorter than the text, {size} bytes")
    if options.checkpoint:
        try:
            importlib.import_module("jaxpp.checkpoint")
        except ModuleNotFoundError as error:
            raise ValueError(f"--checkpoint: {error}") from None
    for flag, path in (("--trace", options.trace), ("--costs", options.costs), ("--dump", options.dump)):
        if path and not path.absolute().parent.is_dir():
            raise ValueError(f"{flag}: no folder {path.parent}")


def _check_cuts(options: Options, cuts: tuple[int, ...]) -> None:
    """Raises ValueError for the first flag that these cuts don't go with."""
    if options.is_auto:
        raise ValueError("--schedule auto chooses the cuts: leave out --cuts")
    if options.slices or options.plan.slices > 1:
        raise ValueError("--cuts are of a model of whole sequences: leave out --slices, and schedules of slices")
    if options.shards:
        raise ValueError("--cuts are for stages that are a chain: take a schedule without a shared vocabulary")
    if len(cuts) != options.stages or sum(cuts) != options.layers + 2:
        found = f"--cuts {','.join(map(str, cuts))} are {sum(cuts)} layers in {len(cuts)} stages"
        layers = f"--layers ({options.layers}) and two more, for the embedding and the head"
        raise ValueError(f"{found}; expected {layers}, in --stages ({options.stages})")


def _find_devices(options: Options) -> list[Any]:
    """JAX looks for devices when it is first asked for one, so this has to come before any array.

    Raises ValueError where there are too few.
    """
    if options.ray:
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
        raise ValueError(f"--platform {options.platform}: JAX finds no such devices") from None
    if len(found) < options.devices:
        raise ValueError(f"meshes x --data x --model is {options.devices} devices; {options.platform} has {len(found)}")
    return found[: options.devices]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        usage="%(prog)s [options]",
        description="Train a small GPT as a pipeline of stages, each on its own mesh of devices.",
        allow_abbrev=False,
    )

    pipeline = parser.add_argument_group("the pipeline")
    _number(pipeline, "--stages", 4, "pipeline stages")
    _number(pipeline, "--microbatches", 8, "pieces of the batch that flow through the stages")
    pipeline.add_argument(
        "--schedule",
        metavar="NAME|FILE",
        default="1f1b",
        help="as jaxpp-schedule takes it: a name, gis{chunks=4}, or a grid in a file; or auto, which measures "
        "and takes what is fastest (default: 1f1b)",
    )
    pipeline.add_argument(
        "--cuts",
        type=_cuts,
        metavar="N,N,...",
        help="layers of each stage: the embedding, the blocks and the head are one each (default: equally many blocks)",
    )
    _number(pipeline, "--chunks", None, "stages per mesh (default: 1, or what the schedule is for)")
    _number(pipeline, "--slices", None, "slices of each sequence, with seq1f1b and its kin (default: the schedule's)")
    _number(pipeline, "--data", 2, "data parallelism inside each stage")
    _number(pipeline, "--model", 1, "tensor parallelism inside each stage")
    _number(pipeline, "--processes", 1, "processes that hold the devices; this one starts them")
    pipeline.add_argument(
        "--coordinator", metavar="HOST:PORT", help="don't start others, join them: where process 0 listens, or auto"
    )
    _number(pipeline, "--process", None, "the number of this process, with --coordinator", least=0)
    pipeline.add_argument("--ray", action="store_true", help="hold the devices in actors of Ray")
    _number(pipeline, "--actors", None, "actors, with --ray (default: one per mesh)")
    pipeline.add_argument(
        "--platform",
        default=os.environ.get("JAX_PLATFORMS") or "cpu",
        help="cpu makes as many virtual devices as it takes (default: JAX_PLATFORMS, or else cpu)",
    )

    model = parser.add_argument_group("the model")
    _number(model, "--layers", 8, "transformer blocks")
    _number(model, "--width", 64, "size of an activation")
    _number(model, "--heads", 4, "attention heads")
    _number(model, "--sequence", 64, "bytes of text per sequence")
    model.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="of the computation (default: float32)"
    )

    _number(model, "--vocabulary", 256, "tokens, of which the text has 256 at most", least=256)

    training = parser.add_argument_group("the training")
    _number(training, "--steps", 20, "training steps")
    _number(training, "--batch", 32, "sequences per step")
    training.add_argument("--optimizer", choices=tuple(LEARNING_RATES), default="adamw", help="(default: adamw)")
    rates = ", ".join(f"{rate} for {name}" for name, rate in LEARNING_RATES.items())
    training.add_argument("--learning-rate", type=_positive, metavar="X", help=f"after a warm-up (default: {rates})")
    _number(training, "--seed", 0, "of the parameters and the batches", least=0)
    training.add_argument(
        "--checkpoint", type=Path, metavar="DIR", help="go on from the latest checkpoint there, and save there"
    )
    _number(training, "--save-every", 10, "steps between two checkpoints")

    output = parser.add_argument_group("what to look at")
    output.add_argument("--check", action="store_true", help="compare with plain jax.jit on one device")
    output.add_argument("--trace", type=Path, metavar="FILE", help="write a Chrome trace of one step")
    output.add_argument(
        "--costs", type=Path, metavar="FILE", help="write what its tasks cost, for jaxpp-schedule: TOML, or .json"
    )
    output.add_argument("--dump", type=Path, metavar="FILE", help="write the lowered step, for jaxpp-opt")
    return parser


def _number(group: Any, flag: str, default: int | None, text: str, least: int = 1) -> None:
    def whole(value: str) -> int:
        if not (value.isascii() and value.isdecimal()) or not least <= int(value) < 2**31:
            raise argparse.ArgumentTypeError(f"{value!r} is not a whole number of at least {least}, below 2**31")
        return int(value)

    group.add_argument(
        flag, type=whole, default=default, metavar="N", help=text if default is None else f"{text} (default: {default})"
    )


def _cuts(value: str) -> tuple[int, ...]:
    words = value.split(",")
    if not all(word.isascii() and word.isdecimal() and 0 < int(word) < 2**31 for word in words):
        raise argparse.ArgumentTypeError(f"{value!r} is not a row of whole numbers of at least 1, such as 4,3,2,1")
    return tuple(map(int, words))


def _positive(value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{value!r} is not a positive number")
    return number
