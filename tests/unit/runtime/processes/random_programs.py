"""Random programs of small tasks on integers, and what they give: the order of their transfers is as it comes."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
from unit.runtime.programs import hop, module

SHAPES = ((), (3,), (2, 0), (64, 33))

Value = tuple[str, tuple[int, ...]]
"""(name, shape)"""


def tensor(shape: Sequence[int]) -> str:
    return f"tensor<{''.join(f'{size}x' for size in shape)}i32>"


class RandomProgram:
    """A program module, `text`. Its step takes `arguments`, gives `expected`: of each mesh a value of each shape."""

    def __init__(self, seed: int, meshes: int = 4, steps: int = 40) -> None:
        self.random, self.meshes = random.Random(seed), meshes
        self.values: dict[str, np.ndarray[Any, Any]] = {}
        self.here: list[list[Value]] = [[] for _ in range(meshes)]
        """The values that each mesh has."""
        self.lines: list[list[str]] = [[] for _ in range(meshes)]
        self.arriving: list[dict[str, str]] = [{} for _ in range(meshes)]
        """By name the line that receives what a mesh has been sent and has not received."""
        self.tokens = [0] * meshes
        self.count = 0
        self.arguments = [np.arange(np.prod(shape), dtype="i4").reshape(shape) + k for k, shape in self.places()]
        for value, (mesh, shape) in zip(self.arguments, self.places(), strict=True):
            self.add(mesh, f"%x{mesh}_{SHAPES.index(shape)}", shape, value)
        for _ in range(steps):
            self.send() if self.random.random() < 0.5 else self.call(self.random.randrange(meshes))
        self.results = [self.call(mesh, shape) for mesh, shape in self.places()]
        self.expected = [self.values[name] for name in self.results]
        self.text = module(*map(self.task, SHAPES), *map(self.mesh, range(meshes)))

    def places(self) -> list[tuple[int, tuple[int, ...]]]:
        return [(mesh, shape) for mesh in range(self.meshes) for shape in SHAPES]

    def add(self, mesh: int, name: str, shape: tuple[int, ...], value: np.ndarray[Any, Any]) -> None:
        self.values[name] = value
        self.here[mesh].append((name, shape))

    def task(self, shape: tuple[int, ...]) -> str:
        number, type_ = SHAPES.index(shape), tensor(shape)
        return f"""func.func private @task_{number}(%a: {type_}, %b: {type_}) -> {type_}
            attributes {{jaxpp.kind = "forward", jaxpp.stage = 0 : i64}} {{
          %c = stablehlo.constant dense<3> : {type_}
          %d = stablehlo.multiply %a, %c : {type_}
          %e = stablehlo.add %d, %b : {type_}
          return %e : {type_}
        }}"""

    def call(self, mesh: int, shape: tuple[int, ...] | None = None) -> str:
        """Let a mesh make a value out of two of one shape: what it was sent, it receives now at the latest."""
        shape = shape if shape is not None else self.random.choice(SHAPES)
        one, other = (self.random.choice([name for name, each in self.here[mesh] if each == shape]) for _ in "ab")
        for name in (one, other):
            self.receive(mesh, name)
        for name in list(self.arriving[mesh]):
            if self.random.random() < 0.2:
                self.receive(mesh, name)
        self.count += 1
        name = f"%v{self.count}"
        task, type_ = SHAPES.index(shape), tensor(shape)
        attributes = f"{{jaxpp.mesh = {mesh} : i64, jaxpp.stage = {self.count} : i64, jaxpp.microbatch = 0 : i64}}"
        call = f"{name} = call @task_{task}({one}, {other}) {attributes} : ({type_}, {type_}) -> {type_}"
        self.lines[mesh].append(call)
        self.add(mesh, name, shape, self.values[one] * 3 + self.values[other])
        return name

    def send(self) -> None:
        source, target = self.random.sample(range(self.meshes), 2)
        name, shape = self.random.choice(self.here[source])
        if name in (each for each, _ in self.here[target]):
            return
        self.receive(source, name)
        self.count += 1
        handle, tokens = hop(source, target, self.count), self.tokens
        self.lines[source].append(
            f'%t{tokens[source] + 1} = "stablehlo.send"({name}, %t{tokens[source]}) {handle}'
            f" : ({tensor(shape)}, !stablehlo.token) -> !stablehlo.token"
        )
        tokens[source] += 1
        self.arriving[target][name] = f'"stablehlo.recv"(%t{{}}) {handle} : (!stablehlo.token) -> ({tensor(shape)}, '
        self.here[target].append((name, shape))

    def receive(self, mesh: int, name: str) -> None:
        if line := self.arriving[mesh].pop(name, ""):
            token = self.tokens[mesh]
            self.lines[mesh].append(f"{name}, %t{token + 1} = {line.replace('%t{}', f'%t{token}')}!stablehlo.token)")
            self.tokens[mesh] += 1

    def mesh(self, mesh: int) -> str:
        for name in list(self.arriving[mesh]):
            self.receive(mesh, name)
        types, first = list(map(tensor, SHAPES)), mesh * len(SHAPES)
        arguments = [f"%x{mesh}_{k}: {each} {{jaxpp.number = {first + k} : i64}}" for k, each in enumerate(types)]
        results = [f"{each} {{jaxpp.number = {first + k} : i64}}" for k, each in enumerate(types)]
        lines = ["%t0 = stablehlo.create_token : !stablehlo.token", *self.lines[mesh]]
        returned = ", ".join(self.results[first : first + len(SHAPES)])
        body = "\n  ".join([*lines, f"return {returned} : {', '.join(types)}"])
        head = f"func.func public @mesh_{mesh}({', '.join(arguments)}) -> ({', '.join(results)})"
        return f"{head} attributes {{jaxpp.mesh = {mesh} : i64}} {{\n  {body}\n}}"
