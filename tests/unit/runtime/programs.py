"""Program modules written out by hand: a pipeline of `tanh(x @ w)` stages under 1F1B, trained by one SGD step."""

import collections
import dataclasses
import itertools
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from jaxlib.mlir import ir

from jaxpp import _compat, runtime
from jaxpp.runtime.execution.execute import Observe
from jaxpp.runtime.execution.steps import StepLabel


def parse(text: str) -> runtime.Program:
    with _compat.make_context():
        return runtime.load(ir.Module.parse(text))


def tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every task and every copy of a traced step take exactly one second, and two of processors."""
    clock = types.SimpleNamespace(perf_counter=itertools.count().__next__, process_time=itertools.count(0, 2).__next__)
    monkeypatch.setattr("jaxpp.runtime.measuring.trace.time", clock)


Live = Mapping[int, Mapping[int, jax.Array]]
"""The arrays of each mesh, by register."""


def watched(executable: runtime.Executable, look: Callable[[int, Any, Live], None]) -> Observe:
    """For `Executable.run`: calls `look` after each instruction with its mesh, itself, and the arrays that live."""

    def observe(label: StepLabel, _: Sequence[Any], registers: Sequence[Any]) -> None:
        live: dict[int, dict[int, jax.Array]] = collections.defaultdict(dict)
        for (mesh, register), number in executable._registers.numbers.items():
            if registers[number] is not None:
                live[mesh][register] = registers[number]
        for mesh, instruction in label:
            look(mesh, instruction, live)

    return observe


def module(*functions: str, meshes: int | None = None, data: int = 1) -> str:
    """A program module of these functions; `meshes` is how many of them are of a mesh unless it is given."""
    count = sum("@mesh_" in each for each in functions)
    mesh = f'sdy.mesh @mesh = <["mpmd"=1, "data"={data}]>' if data > 1 else ""
    return "\n".join(
        [
            f"module attributes {{mhlo.num_partitions = {data} : i32, jaxpp.meshes = {meshes or count} : i64}} {{",
            mesh,
            *functions,
            "}",
        ]
    )


def hop(source: int, target: int, channel: int) -> str:
    """The properties of a send and its receive."""
    handle = f"channel_handle = #stablehlo.channel_handle<handle = {channel}, type = 1>"
    return f"<{{{handle}, source_target_pairs = dense<[[{source}, {target}]]> : tensor<1x2xi64>}}>"


def submeshes(meshes: int, data: int = 1, names: tuple[str, str] = ("mpmd", "data")) -> list[Mesh]:
    """`meshes` submeshes of `data` devices; the mpmd axis is the first or the second of `names`."""
    axis = names.index("mpmd")
    shape = (1, data) if axis == 0 else (data, 1)
    devices = np.array(jax.devices()[: meshes * data]).reshape(meshes, data)
    return [Mesh(row.reshape(shape), names) for row in devices]


def one_f_one_b(stages: int, microbatches: int, stage: int) -> list[tuple[str, int]]:
    """The tasks of one stage, as ("forward" | "backward", microbatch)."""
    warm_up = min(microbatches, stages - stage)
    tasks = [("forward", i) for i in range(warm_up)]
    for i in range(microbatches):
        tasks.append(("backward", i))
        if warm_up + i < microbatches:
            tasks.append(("forward", warm_up + i))
    return tasks


@dataclasses.dataclass
class Pipeline:
    """Stage k has the weight `arguments[k]`; the last argument is the batch. The results are the new weights, the loss.

    The loss is half the sum of the squares of what the last stage returns; the step is `w - 0.01 * gradient`.
    """

    stages: int
    microbatches: int
    data: int = 1
    rows: int = 8
    width: int = 32
    donate: bool = True

    def __post_init__(self) -> None:
        tensor = f"tensor<{self.rows}x{self.width}xf32>"
        self.weight, self.x = f"tensor<{self.width}x{self.width}xf32>", tensor
        self.batch = f"tensor<{self.microbatches}x{self.rows}x{self.width}xf32>"
        self.replicated = self.sharding("{}, {}")
        self.sharded = self.sharding('{"data"}, {}')

    def sharding(self, dimensions: str) -> str:
        return f"sdy.sharding = #sdy.sharding<@mesh, [{dimensions}]>" if self.data > 1 else ""

    def arguments(self, seed: int = 0) -> list[np.ndarray[Any, Any]]:
        rng = np.random.default_rng(seed)
        weights = [rng.normal(size=(self.width, self.width), scale=0.1).astype("f4") for _ in range(self.stages)]
        return [*weights, rng.normal(size=(self.microbatches, self.rows, self.width)).astype("f4")]

    def expected(self, arguments: list[Any]) -> list[np.ndarray[Any, Any]]:
        """The results, in NumPy."""
        *weights, batch = [np.asarray(each) for each in arguments]
        gradients, loss = [np.zeros_like(w) for w in weights], 0.0
        for x in batch:
            inputs = [x]
            for w in weights:
                inputs.append(np.tanh(inputs[-1] @ w))
            loss += 0.5 * np.sum(inputs[-1] ** 2)
            g = inputs[-1]
            for stage in reversed(range(self.stages)):
                g = g * (1 - inputs[stage + 1] ** 2)
                gradients[stage] += inputs[stage].T @ g
                g = g @ weights[stage].T
        return [*(w - 0.01 * g for w, g in zip(weights, gradients, strict=True)), np.array(loss)]

    def functions(self) -> str:
        w, x, xs, r, s = self.weight, self.x, self.batch, self.replicated, self.sharded
        batch_sharding = self.sharding('{}, {"data"}, {}')
        donated = f"tf.aliasing_output = 1 : i32{', ' if r else ''}"
        backward = f"""
            %one = stablehlo.constant dense<1.0> : {x}
            %y2 = stablehlo.multiply %y, %y : {x}
            %d = stablehlo.subtract %one, %y2 : {x}
            %gd = stablehlo.multiply %g, %d : {x}
            %dw = stablehlo.dot_general %x, %gd, contracting_dims = [0] x [0] : ({x}, {x}) -> {w}
            %sum = stablehlo.add %acc, %dw : {w}
            %dx = stablehlo.dot_general %gd, %w, contracting_dims = [1] x [1] : ({x}, {w}) -> {x}"""
        forward = f"""
            %z = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : ({x}, {w}) -> {x}
            %y = stablehlo.tanh %z : {x}"""
        return f"""
          func.func private @zeros() -> ({w} {{{r}}}) attributes {{jaxpp.kind = "before"}} {{
            %c = stablehlo.constant dense<0.0> : {w}
            return %c : {w}
          }}
          func.func private @first(%w: {w} {{{r}}}, %xs: {xs} {{{batch_sharding}}}, %i: tensor<i32>)
              -> ({x} {{{s}}}, {x} {{{s}}}) attributes {{jaxpp.kind = "forward", jaxpp.stage = 0 : i64}} {{
            %o = stablehlo.constant dense<0> : tensor<i32>
            %1 = stablehlo.dynamic_slice %xs, %i, %o, %o, sizes = [1, {self.rows}, {self.width}]
                : ({xs}, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x{self.rows}x{self.width}xf32>
            %x = stablehlo.reshape %1 : (tensor<1x{self.rows}x{self.width}xf32>) -> {x} {forward}
            return %x, %y : {x}, {x}
          }}
          func.func private @forward(%w: {w} {{{r}}}, %x: {x} {{{s}}}) -> ({x} {{{s}}})
              attributes {{jaxpp.kind = "forward", jaxpp.stage = 1 : i64}} {{ {forward}
            return %y : {x}
          }}
          func.func private @backward(%w: {w} {{{r}}}, %x: {x} {{{s}}}, %y: {x} {{{s}}}, %g: {x} {{{s}}},
              %acc: {w} {{{donated}{r}}}) -> ({x} {{{s}}}, {w} {{{r}}})
              attributes {{jaxpp.kind = "backward", jaxpp.stage = 0 : i64}} {{ {backward}
            return %dx, %sum : {x}, {w}
          }}
          func.func private @loss(%y: {x} {{{s}}}, %loss: tensor<f32>) -> tensor<f32>
              attributes {{jaxpp.kind = "loss"}} {{
            %y2 = stablehlo.multiply %y, %y : {x}
            %o = stablehlo.constant dense<0.0> : tensor<f32>
            %h = stablehlo.constant dense<0.5> : tensor<f32>
            %s = stablehlo.reduce(%y2 init: %o) applies stablehlo.add across dimensions = [0, 1]
                : ({x}, tensor<f32>) -> tensor<f32>
            %m = stablehlo.multiply %s, %h : tensor<f32>
            %r = stablehlo.add %loss, %m : tensor<f32>
            return %r : tensor<f32>
          }}
          func.func private @sgd(%w: {w} {{{donated.replace("1", "0") if self.donate else ""}{r}}}, %g: {w} {{{r}}})
              -> ({w} {{{r}}}) attributes {{jaxpp.kind = "after"}} {{
            %lr = stablehlo.constant dense<0.01> : {w}
            %d = stablehlo.multiply %lr, %g : {w}
            %n = stablehlo.subtract %w, %d : {w}
            return %n : {w}
          }}"""

    def mesh(self, stage: int) -> str:
        """The sequence of one mesh."""
        w, batch, last = self.weight, self.batch, stage == self.stages - 1
        donor = ", jax.buffer_donor = true" if self.donate else ""
        replicated = f", {self.replicated}" if self.replicated else ""
        arguments = f"%w: {w} {{jaxpp.number = {stage} : i64{donor}{replicated}}}"
        if stage == 0:
            sharded = ", " + self.sharding('{}, {"data"}, {}') if self.data > 1 else ""
            arguments += f", %xs: {batch} {{jaxpp.number = {self.stages} : i64{sharded}}}"
        line = _Line(self, stage)
        for kind, microbatch in one_f_one_b(self.stages, self.microbatches, stage):
            line.forward(microbatch) if kind == "forward" else line.backward(microbatch)
        line.call(f"%n = call @sgd(%w, %a{self.microbatches})", f"({w}, {w}) -> {w}", "0, 1" if self.donate else "1")
        results, types, values = f"{w} {{jaxpp.number = {stage} : i64{replicated}}}", w, "%n"
        if last:
            results += f", tensor<f32> {{jaxpp.number = {self.stages} : i64}}"
            types, values = f"{types}, tensor<f32>", f"%n, %l{self.microbatches}"
        body = "\n            ".join([*line.lines, f"return {values} : {types}"])
        return f"""
          func.func public @mesh_{stage}({arguments}) -> ({results}) attributes {{jaxpp.mesh = {stage} : i64}} {{
            {body}
          }}"""

    def text(self) -> str:
        return module(self.functions(), *map(self.mesh, range(self.stages)), meshes=self.stages, data=self.data)

    def executable(self, **options: Any) -> runtime.Executable:
        names = [*(f"weights[{k}]" for k in range(self.stages)), "batch"]
        return runtime.Executable(parse(self.text()), submeshes(self.stages, self.data), names=names, **options)


class _Line:
    """The straight line of one mesh, written as it goes."""

    def __init__(self, pipeline: Pipeline, stage: int) -> None:
        self.pipeline, self.stage, self.last = pipeline, stage, stage == pipeline.stages - 1
        self.lines = ["%t0 = stablehlo.create_token : !stablehlo.token"]
        self.tokens = 0
        self.call("%a0 = call @zeros()", f"() -> {pipeline.weight}")
        if self.last:
            self.lines.append("%l0 = stablehlo.constant dense<0.0> : tensor<f32>")

    def call(self, call: str, types: str, last_use: str = "", microbatch: int | None = None) -> None:
        attributes = [f"jaxpp.mesh = {self.stage} : i64"]
        if microbatch is not None:
            attributes += [f"jaxpp.stage = {self.stage} : i64", f"jaxpp.microbatch = {microbatch} : i64"]
        if last_use:
            attributes.append(f"jaxpp.last_use = array<i64: {last_use}>")
        self.lines.append(f"{call} {{{', '.join(attributes)}}} : {types}")

    def channel(self, stage: int, microbatch: int) -> int:
        """What goes from `stage` to the next; the gradient that comes back has the next number."""
        return 2 * (stage * self.pipeline.microbatches + microbatch)

    def send(self, value: str, target: int, channel: int, last_use: str = "") -> None:
        attributes = f"{{jaxpp.last_use = array<i64: {last_use}>}}" if last_use else ""
        self.tokens += 1
        self.lines.append(
            f'%t{self.tokens} = "stablehlo.send"({value}, %t{self.tokens - 1}) {hop(self.stage, target, channel)} '
            f"{attributes} : ({self.pipeline.x}, !stablehlo.token) -> !stablehlo.token"
        )

    def receive(self, value: str, source: int, channel: int) -> None:
        sharding = 'sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}, {}]>, <@mesh, []>]>'
        attributes = f"{{{sharding}}}" if self.pipeline.data > 1 else ""
        self.tokens += 1
        self.lines.append(
            f'{value}, %t{self.tokens} = "stablehlo.recv"(%t{self.tokens - 1}) {hop(source, self.stage, channel)} '
            f"{attributes} : (!stablehlo.token) -> ({self.pipeline.x}, !stablehlo.token)"
        )

    def forward(self, i: int) -> None:
        w, x, stage = self.pipeline.weight, self.pipeline.x, self.stage
        if stage == 0:
            self.lines.append(f"%i{i} = stablehlo.constant dense<{i}> : tensor<i32>")
            types = f"({w}, {self.pipeline.batch}, tensor<i32>) -> ({x}, {x})"
            self.call(f"%x{i}, %y{i} = call @first(%w, %xs, %i{i})", types, microbatch=i)
        else:
            self.receive(f"%x{i}", stage - 1, self.channel(stage - 1, i))
            self.call(f"%y{i} = call @forward(%w, %x{i})", f"({w}, {x}) -> {x}", microbatch=i)
        if self.last:
            types = f"({x}, tensor<f32>) -> tensor<f32>"
            self.call(f"%l{i + 1} = call @loss(%y{i}, %l{i})", types, "1" if i else "", i)
        else:
            self.send(f"%y{i}", stage + 1, self.channel(stage, i))

    def backward(self, i: int) -> None:
        w, x, stage = self.pipeline.weight, self.pipeline.x, self.stage
        gradient = f"%y{i}" if self.last else f"%g{i}"
        if not self.last:
            self.receive(gradient, stage + 1, self.channel(stage, i) + 1)
        call = f"%d{i}, %a{i + 1} = call @backward(%w, %x{i}, %y{i}, {gradient}, %a{i})"
        self.call(call, f"({w}, {x}, {x}, {x}, {w}) -> ({x}, {w})", "1, 2, 3, 4", i)
        if stage:
            self.send(f"%d{i}", stage - 1, self.channel(stage - 1, i) + 1, "0")
