"""`verify-program`: the program can't deadlock, loses nothing, and needs this much memory."""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass, PassError
from jaxpp.hlo_passes.ir import attributes as at
from jaxpp.hlo_passes.ir.functions import functions, recursive
from jaxpp.hlo_passes.ir.program import Instruction, mesh_functions, read_program
from jaxpp.hlo_passes.ir.shardings import Shardings
from jaxpp.hlo_passes.program.liveness import check_liveness
from jaxpp.hlo_passes.program.program_form import check_form


@dataclass(frozen=True)
class VerifyProgram(Pass):
    """Proves of the program, before anything runs, what a runtime takes for granted. Changes only attributes.

    - Every recv has its one send, and the other way round: same channel, meshes, type and sharding.
    - The sequences together have no cycle: whatever the timing, no mesh waits forever.
    - Nothing is used after its last use, and nothing is forgotten: each value dies once or is returned.
    - Every call fits its callee, and every attribute says what `docs/ir.md` (section 6) promises.

    It writes on each mesh function `jaxpp.peak_bytes`, the largest sum of live bytes (of whole values, arguments
    included), and `jaxpp.peak_activations`, the largest number of microbatches whose residuals wait for a backward.
    All of it is linear in the number of instructions.

    Preconditions: `plan-buffers` ran.

    ```mlir
    func.func public @mesh_0(...)   ==>   func.func public @mesh_0(...)
      attributes {jaxpp.mesh = 0}           attributes {jaxpp.mesh = 0, jaxpp.peak_activations = 4,
                                                        jaxpp.peak_bytes = 8192}
    ```
    """

    name: ClassVar[str] = "verify-program"

    def run(self, module: ir.Module) -> None:
        """Check `module`. Raises PassError with the guilty instruction."""
        lines = read_program(module)
        check_form(module)
        _check_calls(module, lines)
        _check_channels(module, lines)
        _check_no_cycle(lines)
        for function, line in zip(mesh_functions(module), lines, strict=True):
            peak = check_liveness(function, line)
            function.attributes[at.PEAK_BYTES] = at.i64(peak.bytes)
            function.attributes[at.PEAK_ACTIVATIONS] = at.i64(peak.activations)


Lines = Sequence[Sequence[Instruction]]


def _check_calls(module: ir.Module, lines: Lines) -> None:
    types: dict[ir.Attribute, tuple[list[ir.Type], list[ir.Type]]] = {}
    donated: dict[ir.Attribute, list[int]] = {}
    for name, function in _tasks(module).items():
        table = at.argument_attributes(function)
        donated[ir.FlatSymbolRefAttr.get(name)] = [n for n, e in enumerate(table) if at.ALIAS in e or at.DONOR in e]
        type_ = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
        types[ir.FlatSymbolRefAttr.get(name)] = list(type_.inputs), list(type_.results)
    for line in lines:
        for step in line:
            if step.name == "func.call":
                target = step.op.attributes["callee"]
                if target not in types:
                    raise PassError(f"a call of {target}, which is no task in the module", location=step.op.location)
                if ([v.type for v in step.operands], [v.type for v in step.results]) != types[target]:
                    raise PassError(f"a call of {target} with other types than it has", location=step.op.location)
                dying, uses = set(step.last_use), Counter(step.operands)
                for number in donated[target]:
                    if number not in dying or uses[step.operands[number]] > 1:
                        raise PassError(
                            f"{target} takes over the buffer of its argument {number}, which lives on",
                            location=step.op.location,
                        )


def _tasks(module: ir.Module) -> dict[str, ir.Operation]:
    """The functions that a mesh can call. Raises PassError for one that calls itself."""
    known = functions(module)
    again = recursive(known)
    if again is not None:
        raise PassError(f"@{again} calls itself", location=known[again].location)
    return {
        name: function
        for name, function in known.items()
        if len(function.regions[0].blocks) == 1 and at.MESH not in function.attributes
    }


def _check_channels(module: ir.Module, lines: Lines) -> None:
    sides: dict[bool, dict[int, Instruction]] = {True: {}, False: {}}
    for mesh, line in enumerate(lines):
        for hop in line:
            if hop.channel < 0:
                continue
            sends = hop.name == "stablehlo.send"
            if hop.source == hop.target or mesh != (hop.source if sends else hop.target):
                raise PassError(f"channel {hop.channel}: a {hop.name} on mesh {mesh}", location=hop.op.location)
            if hop.channel in sides[sends]:
                raise PassError(f"channel {hop.channel}: a second {hop.name} on mesh {mesh}", location=hop.op.location)
            sides[sends][hop.channel] = hop
    for sends, other in ((True, "recv"), (False, "send")):
        for channel, hop in sides[sends].items():
            if channel not in sides[not sends]:
                raise PassError(
                    f"channel {channel} from mesh {hop.source} to mesh {hop.target} has no {other}",
                    location=hop.op.location,
                )
    shardings = Shardings(module)
    for channel, send in sides[True].items():
        recv = sides[False][channel]
        sent, received = send.operands[0], recv.results[0]
        routes = (send.source, send.target), (recv.source, recv.target)
        given, taken = shardings.of(sent), shardings.of(received)
        for what, one, other, equal in (
            ("meshes", *routes, routes[0] == routes[1]),
            ("type", sent.type, received.type, sent.type == received.type),
            ("sharding", given, taken, at.same(given, taken)),
        ):
            if not equal:
                message = f"channel {channel}: sent with {what} {one}, received with {other}"
                raise PassError(message, location=recv.op.location)


def _check_no_cycle(lines: Lines) -> None:
    """Run all sequences at once, each until it waits; a send never waits."""
    hops = [[step for step in line if step.channel >= 0] for line in lines]
    position = [0] * len(hops)
    sent: set[int] = set()
    waiting: dict[int, int] = {}
    work = deque(range(len(hops)))
    while work:
        mesh = work.popleft()
        while position[mesh] < len(hops[mesh]):
            hop = hops[mesh][position[mesh]]
            if hop.name == "stablehlo.send":
                sent.add(hop.channel)
                if hop.channel in waiting:
                    work.append(waiting.pop(hop.channel))
            elif hop.channel not in sent:
                waiting[hop.channel] = mesh
                break
            position[mesh] += 1
    if waiting:
        stuck = [hops[mesh][position[mesh]] for mesh in sorted(waiting.values())]
        waits = [f"mesh {hop.target} waits for channel {hop.channel} from mesh {hop.source}" for hop in stuck]
        raise PassError("deadlock: " + "; ".join(waits), location=stuck[0].op.location)
