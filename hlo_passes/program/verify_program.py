"""`verify-program`: the program can't deadlock, loses nothing, and needs this much memory."""

from collections import deque
from dataclasses import dataclass
from typing import ClassVar

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass, PassError
from jaxpp.hlo_passes.ir import attributes as at
from jaxpp.hlo_passes.ir.attributes import value_sharding
from jaxpp.hlo_passes.ir.functions import body_of, functions, name_of, operations
from jaxpp.hlo_passes.ir.program import channel_of, mesh_functions
from jaxpp.hlo_passes.ir.shardings import Shardings
from jaxpp.hlo_passes.program.liveness import check_liveness


@dataclass(frozen=True)
class VerifyProgram(Pass):
    """Proves of the program, before anything runs, what a runtime takes for granted. Changes only attributes.

    - Every recv has its one send, and the other way round: same channel, meshes, type and sharding.
    - The sequences together have no cycle: whatever the timing, no mesh waits forever.
    - Nothing is used after its last use, and nothing is forgotten: each value dies once or is returned.
    - Every call fits its callee.

    It writes on each mesh function `jaxpp.peak_bytes`, the largest sum of live bytes (of whole values, arguments
    included), and `jaxpp.peak_activations`, the largest number of microbatches whose residuals wait for a backward.
    All of it is linear in the number of instructions.

    Preconditions: `plan-buffers` ran.
    """

    name: ClassVar[str] = "verify-program"

    def run(self, module: ir.Module) -> None:
        """Check `module`. Raises PassError with the guilty instruction."""
        meshes = mesh_functions(module)
        _check_calls(module, meshes)
        _check_channels(module, meshes)
        _check_no_cycle(meshes)
        for function in meshes:
            peak = check_liveness(function)
            function.attributes["jaxpp.peak_bytes"] = at.i64(peak.bytes)
            function.attributes["jaxpp.peak_activations"] = at.i64(peak.activations)


def _check_calls(module: ir.Module, meshes: list[ir.Operation]) -> None:
    by_name = functions(module)
    types = {
        f"@{name}": ir.FunctionType(ir.TypeAttr(f.attributes["function_type"]).value) for name, f in by_name.items()
    }
    known = {name: (list(type_.inputs), list(type_.results)) for name, type_ in types.items()}
    for function in meshes:
        for op in operations(body_of(function))[:-1]:
            if op.name == "func.call":
                target = str(op.attributes["callee"])
                if target not in known:
                    raise PassError(f"a call of {target}, which is not in the module", location=op.location)
                if ([v.type for v in op.operands], [v.type for v in op.results]) != known[target]:
                    raise PassError(f"a call of {target} with other types than it has", location=op.location)
            elif op.name not in ("stablehlo.constant", "stablehlo.create_token", "stablehlo.send", "stablehlo.recv"):
                raise PassError(
                    f"@{name_of(function)} has a {op.name}: only constants, calls, sends and receives are allowed",
                    location=op.location,
                )


def _check_channels(module: ir.Module, meshes: list[ir.Operation]) -> None:
    shardings = Shardings(module)
    sides: dict[str, dict[int, tuple[ir.Operation, int, int, ir.Type, ir.Attribute | None]]] = {
        "stablehlo.send": {},
        "stablehlo.recv": {},
    }
    for mesh, function in enumerate(meshes):
        for op in operations(body_of(function)):
            if op.name not in sides:
                continue
            channel, source, target = channel_of(op)
            sending = op.name == "stablehlo.send"
            if mesh != (source if sending else target):
                raise PassError(f"channel {channel}: a {op.name} on mesh {mesh}", location=op.location)
            if channel in sides[op.name]:
                raise PassError(f"channel {channel}: a second {op.name} on mesh {mesh}", location=op.location)
            value = op.operands[0] if sending else op.results[0]
            sharding = shardings.of(value) if sending else shardings.closed(value_sharding(value), _rank(value))
            sides[op.name][channel] = (op, source, target, value.type, sharding)
    sends, recvs = sides["stablehlo.send"], sides["stablehlo.recv"]
    for channel in sends.keys() ^ recvs.keys():
        side, other = (sends, "recv") if channel in sends else (recvs, "send")
        op, source, target, *_ = side[channel]
        raise PassError(f"channel {channel} from mesh {source} to mesh {target} has no {other}", location=op.location)
    for channel, (op, *sent) in sends.items():
        received = list(recvs[channel][1:])
        if sent != received:
            what = next(
                f"{name} {a} is sent, {b} is received"
                for name, a, b in zip(("source", "target", "type", "sharding"), sent, received, strict=True)
                if a != b
            )
            raise PassError(f"channel {channel}: {what}", location=op.location)


def _rank(value: ir.Value) -> int:
    return ir.RankedTensorType(value.type).rank if isinstance(value.type, ir.RankedTensorType) else 0


def _check_no_cycle(meshes: list[ir.Operation]) -> None:
    """Run all sequences at once, each until it waits; a send never waits."""
    steps = [[op for op in operations(body_of(f)) if op.name in _COMMUNICATION] for f in meshes]
    position = [0] * len(steps)
    sent: set[int] = set()
    waiting: dict[int, int] = {}
    work = deque(range(len(steps)))
    while work:
        mesh = work.popleft()
        while position[mesh] < len(steps[mesh]):
            op = steps[mesh][position[mesh]]
            channel = channel_of(op)[0]
            if op.name == "stablehlo.recv" and channel not in sent:
                waiting[channel] = mesh
                break
            if op.name == "stablehlo.send":
                sent.add(channel)
                if channel in waiting:
                    work.append(waiting.pop(channel))
            position[mesh] += 1
    if waiting:
        lines = [
            f"mesh {mesh} waits for channel {channel} from mesh {channel_of(steps[mesh][position[mesh]])[1]}"
            for channel, mesh in sorted(waiting.items(), key=lambda item: item[1])
        ]
        first = next(iter(waiting.values()))
        raise PassError("deadlock: " + "; ".join(lines), location=steps[first][position[first]].location)


_COMMUNICATION = ("stablehlo.send", "stablehlo.recv")
