# pyright: reportMissingImports=false, reportUntypedBaseClass=false
# (PyTorch is not among the dependencies.)
"""Runs the pipelines of PyTorch that processes.py compares with ours: one of the two processes.

The models of processes_models.py, with their numbers, in `torch.distributed.pipelining`, over gloo, one thread each.
Prints what processes.py reads: for each schedule and each time a step was run (begin, end, loss), as JSON.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed
import torch.nn.functional as F
from processes_models import HEADS, LAYERS, Model, make
from shared import by_turns
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B, ScheduleZBVZeroBubble

SCHEDULES = [(Schedule1F1B, 1), (ScheduleInterleaved1F1B, 2), (ScheduleZBVZeroBubble, 2)]  # with stages per process


class Stage(torch.nn.Module):
    """Some blocks, with what stands before the first and after the last."""

    def __init__(self, model: Model, start: int, end: int) -> None:
        super().__init__()
        self.is_transformer = model.is_transformer
        blocks, before, after = model.parameters()
        self.weights = torch.nn.ParameterList()
        self.blocks = [self.keep(block) for block in blocks[start:end]]
        self.before = self.keep(before) if start == 0 else {}
        self.after = self.keep(after) if end == LAYERS else {}

    def keep(self, tree: Any) -> Any:
        """Returns the tree with parameters for arrays."""
        if isinstance(tree, dict):
            return {name: self.keep(each) for name, each in tree.items()}
        self.weights.append(torch.nn.Parameter(torch.from_numpy(tree.copy())))
        return self.weights[-1]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.before:
            x = F.embedding(x, self.before["tokens"])
        for block in self.blocks:
            y = x
            if self.is_transformer:
                x = x + attention(block, normalised(block["first"], x))
                y = normalised(block["second"], x)
            hidden = F.gelu(y @ block["up"]["w"] + block["up"]["b"], approximate="tanh")
            x = x + hidden @ block["down"]["w"] + block["down"]["b"]
        return normalised(self.after["norm"], x) @ self.after["head"] if self.after else x


def normalised(weights: Any, x: torch.Tensor) -> torch.Tensor:
    """Applies layer normalisation."""
    return F.layer_norm(x, x.shape[-1:], weights["scale"], weights["bias"])


def attention(weights: Any, x: torch.Tensor) -> torch.Tensor:
    """Applies causal self-attention."""
    rows, length, width = x.shape
    q, k, v = (x @ weights["qkv"]).view(rows, length, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return mixed.transpose(1, 2).reshape(rows, length, width) @ weights["out"]


def pipeline(model: Model, number: int, schedule: Any, per_process: int) -> Callable[[], float | None]:
    """Makes a training step of a schedule, which returns its loss where it is known."""

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if model.is_transformer:
            return F.cross_entropy(outputs.flatten(0, 1), targets.flatten().long())
        return F.mse_loss(outputs, targets)

    count = 2 * per_process
    mine = [number, 3 - number if schedule is ScheduleZBVZeroBubble else 2 + number][:per_process]
    size = LAYERS // count
    modules = [Stage(model, k * size, k * size + size) for k in mine]
    stages = [PipelineStage(each, k, count, torch.device("cpu")) for each, k in zip(modules, mine, strict=True)]
    running = schedule(stages[0] if per_process == 1 else stages, model.microbatches, loss_fn=loss)
    optimizer = torch.optim.SGD([p for each in modules for p in each.parameters()], lr=model.rate)
    x, y = [torch.from_numpy(each.reshape(-1, *each.shape[2:])) for each in model.data()]

    def step() -> float | None:
        losses: list[torch.Tensor] = []
        last = {"target": y, "losses": losses} if count - 1 in mine else {}
        running.step(*([x] if 0 in mine else []), return_outputs=False, **last)
        optimizer.step()
        optimizer.zero_grad()
        return float(torch.stack([each.detach() for each in losses]).mean()) if losses else None

    return step


def main(name: str, microbatches: str, repeat: str, number: str, core: str, port: str) -> None:
    """Runs all schedules in turns."""
    os.sched_setaffinity(0, {int(core)})
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    torch.distributed.init_process_group("gloo", address, rank=int(number), world_size=2)
    model = make(name, int(microbatches))
    runs = {each[0].__name__: pipeline(model, int(number), *each) for each in SCHEDULES}
    found = by_turns({each: partial(turn, name, run) for each, run in runs.items()}, int(repeat))
    print(json.dumps(list(found.values())))
    torch.distributed.destroy_process_group()


def turn(name: str, run: Callable[[], float | None]) -> tuple[float, float, float | None]:
    """Runs a step in both processes at once; returns (begin, end, loss)."""
    torch.distributed.barrier()
    begin = time.perf_counter()
    losses = [run() for _ in range(20 if name == "tiny" else 1)]
    return begin, time.perf_counter(), losses[-1]


if __name__ == "__main__":
    main(*sys.argv[1:])
