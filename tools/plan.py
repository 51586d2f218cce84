"""`jaxpp-plan`: the memory, times and messages of a step on devices that are not here.

SOURCE is one of three:
- `package.module:function`, a function that takes a `jaxpp.MpmdMesh` and returns `(step, arguments)`. The arguments may
  be `jax.ShapeDtypeStruct`s. With --shapes, the function is itself a training step of such arrays.
- A file with a lowered module, as JAXPP_DUMP_DIR and `as_text()` write it.
- A plan that was saved.

The table goes to stdout, progress and messages to stderr. Exit codes: 0; 1 for bad input; 2 for bad usage; 3 if the
step does not fit into the memory of the devices.
"""

import argparse
import dataclasses
import importlib
import inspect
import math
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import Any

import jax
from jaxlib.mlir import ir

import jaxpp
from jaxpp import schedules
from jaxpp._compat import make_context, own_copy
from jaxpp.hlo_passes import run_passes
from jaxpp.hlo_passes.loop.find_microbatch_loop import find_loop, loop_schedule
from jaxpp.hlo_passes.loop.inline_calls import InlineCalls
from jaxpp.ir import attributes as at
from jaxpp.ir.byte_counts import parse_bytes
from jaxpp.ir.errors import PassError, first_line
from jaxpp.ir.functions import main_of
from jaxpp.ir.tensors import DTYPES
from jaxpp.memory.compile_within import compile_within
from jaxpp.memory.limit import LIMITS, limit_text
from jaxpp.memory.task_times import Rates
from jaxpp.planning import Conditions, Plan, PlanError, Target, rehearse
from jaxpp.planning.backend import plan_program
from jaxpp.planning.show_rehearsal import compared
from jaxpp.program import ProgramModule, rewritten, shared_from
from jaxpp.schedules.errors import counted
from jaxpp.step import LoweredStep
from jaxpp.tools import source, streams

OK, BAD_INPUT, TOO_LARGE = 0, 1, 3

_SHAPE = re.compile(r"(?P<element>[A-Za-z]\w*)\[(?P<sizes>[\d, ]*)\]")
_AXIS = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<size>[1-9]\d*)")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the tool, in this process, and returns its exit code. `argv` has the arguments after the program's name."""
    options = _parser().parse_args(argv)
    try:
        conditions = None if options.rehearse is None else Conditions.parse(options.rehearse)
        plan, target = _plan(options)
        if options.output:
            plan.save(options.output)
        if options.page:
            plan.page(options.page)
        print(plan)
        if options.rank:
            print(f"\n{_ranked(plan)}")
        if conditions:
            print(f"\n{rehearse(plan, conditions)}")
        if options.against is not None:
            print(f"\n{_compared(options, plan, target, conditions or Conditions())}")
    except (streams.InputError, PlanError, PassError, ModuleNotFoundError, schedules.ScheduleError) as error:
        notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
        complete = isinstance(error, streams.InputError) or re.match(r"(\S+: )?error: ", str(error))
        print(f"{error}{notes}" if complete else f"error: {error}{notes}", file=sys.stderr)
        return BAD_INPUT
    except jax.errors.JaxRuntimeError as error:
        print(f"error: XLA compiles no such step: {first_line(error)}", file=sys.stderr)
        return BAD_INPUT
    except BrokenPipeError:
        raise  # stdout is closed: `cli` ends without a message
    except OSError as error:
        print(f"error: {streams.printable(str(error.filename))}: {error.strerror}", file=sys.stderr)
        return BAD_INPUT
    return OK if plan.fits else TOO_LARGE


def _ranked(plan: Plan) -> str:
    """Returns a table of the schedules that fit into the devices' memory, by a plan's costs, the fastest first."""
    costs, limits = plan.costs(), plan.activation_limits()
    counted = any(costs.bytes("activation_bytes", schedules.parse(plan.schedule)))
    for mesh, limit in enumerate(limits):
        if limit <= 0:
            return (
                f"no schedule fits as it is: without any activation mesh {mesh} still needs more than its devices have"
            )
    try:
        found = schedules.tune(
            costs,
            meshes=len(plan.meshes),
            microbatches=plan.microbatches,
            memory_bytes=limits if counted else None,
        )
    except schedules.ScheduleError as error:
        return str(error)
    rows = tuple(row for row in found.rows if row.fits or row.report is None)
    left = len(found.rows) - len(rows)
    more = f"\n{left} more need more memory than there is" if left else ""
    return f"schedules that fit, under these costs, in ms:\n{dataclasses.replace(found, rows=rows)}{more}"


def _parser() -> argparse.ArgumentParser:
    doc = __doc__ or ""
    parser = argparse.ArgumentParser(
        "jaxpp-plan",
        description=doc.splitlines()[0],
        epilog=doc.partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("source", metavar="SOURCE", help="package.module:function, or a file")
    parser.add_argument("--target", metavar="NAME", help="such as v5p:4x4x4, h200, cpu; see jaxpp.target")
    for name, about in (("nodes", "hosts with GPUs"), ("gpus", "GPUs of each"), ("devices", "CPUs")):
        parser.add_argument(f"--{name}", type=int, metavar="N", help=f"of the target: {about}")
    parser.add_argument("--mesh", type=_axes, metavar="AXES", help="for a function: mpmd=8,model=8")
    parser.add_argument(
        "--shapes", nargs="+", type=_shape, metavar="SHAPE", help="for a training step: its arguments, as f32[8,128]"
    )
    parser.add_argument("--schedule", metavar="NAME|FILE", help="for a --shapes step or a module whose loop names none")
    parser.add_argument("--memory-limit", type=_bytes, metavar="BYTES", help="of each device, as 95GB or 90GiB")
    about = "of each device in the memory of its host"
    parser.add_argument("--host-memory-limit", type=_bytes, metavar="BYTES", help=about)
    parser.add_argument("--rank", action="store_true", help="rank the schedules of the library under the costs, too")
    about = "rehearse a job under these conditions, as tokens=4e6 price=2.5 mtbf=50000"
    parser.add_argument("--rehearse", nargs="*", metavar="NAME=NUMBER", help=about)
    about = "compare with the same step on these meshes, as mpmd=1,data=8; with the usual ones, if none is given"
    parser.add_argument("--against", nargs="*", type=_axes, metavar="AXES", help=about)
    parser.add_argument("-o", "--output", metavar="FILE", help="save the plan there, as JSON")
    parser.add_argument("--page", metavar="FILE", help="write the tables there, as HTML")
    return parser


def _axes(text: str) -> dict[str, int]:
    found = [_AXIS.fullmatch(word) for word in text.split(",")]
    axes = {axis["name"]: int(axis["size"]) for axis in found if axis}
    if len(axes) != len(found) or "mpmd" not in axes:
        raise argparse.ArgumentTypeError(
            f"expected axes with sizes, mpmd among them, as mpmd=8,model=8; found '{text}'"
        )
    return axes


def _shape(text: str) -> jax.ShapeDtypeStruct:
    found = _SHAPE.fullmatch(text)
    element = found["element"] if found else ""
    # MLIR's names of types. Other common names are taken, too: s32 or int32 for i32, u8 for ui8.
    dtype = DTYPES.get(re.sub(r"^u(?=\d)", "ui", re.sub(r"^s(?=\d)", "i", element)))
    dtype = dtype or {each.name: each for each in DTYPES.values()}.get(element)
    if found is None or dtype is None:
        raise argparse.ArgumentTypeError(f"expected a type with a shape, as f32[8,128]; found '{text}'")
    return jax.ShapeDtypeStruct(tuple(int(size) for size in found["sizes"].split(",") if size.strip()), dtype)


def _bytes(text: str) -> int:
    count = parse_bytes(text)
    if not count:
        raise argparse.ArgumentTypeError(f"expected bytes, as 95GB or 90GiB; found '{text}'")
    return count


def _plan(options: argparse.Namespace) -> tuple[Plan, Target | None]:
    """Returns the plan, and its target unless the plan was saved."""
    if options.source.endswith(".json"):
        names = "target", "nodes", "gpus", "devices", "mesh", "shapes", "schedule", *LIMITS, "against"
        _refuse(options, "a saved plan", *names)
        return Plan.load(options.source), None
    is_function = re.fullmatch(r"[\w.]*:\w+", options.source) and not os.path.exists(options.source)
    data = b"" if is_function else _module_in(options)
    if is_function and options.shapes:
        _refuse(options, "a step without shardings", "against")
    target = _target(options)
    return _of_function(options, target) if is_function else _of_module(options, target, data), target


def _target(options: argparse.Namespace) -> Target:
    """Returns the target. For a rehearsal it need not have its compiler."""
    if options.target is None:
        raise PlanError("give a --target, such as v5p:4x4x4, h200 or cpu")
    counts = {name: getattr(options, name) for name in ("nodes", "gpus", "devices")}
    given = {name: count for name, count in counts.items() if count is not None}
    try:
        return jaxpp.target(options.target, **given)
    except ModuleNotFoundError as error:
        if options.rehearse is None and options.against is None:
            raise
        print(f"{error}; until then XLA's compiler for CPUs stands in for it", file=sys.stderr)
        return jaxpp.target(options.target, **given, stand_in=True)


def _compared(options: argparse.Namespace, plan: Plan, target: Target | None, conditions: Conditions) -> str:
    """Returns a table of the planned step beside the same on other meshes, and why other meshes are left out."""
    assert target is not None
    own = options.mesh or {"mpmd": len(target.devices)}
    found, left = {_text_of(own): rehearse(plan, conditions)}, list[str]()
    for axes in options.against or alternatives(own):
        name = _text_of(axes)
        if name in found:
            continue
        chips, expected = (math.prod(each.values()) for each in (axes, own))
        if chips != expected:
            left.append(f"{name} is left out: it has {counted(chips, 'chip')}, expected {expected}")
            continue
        try:
            other = _of_function(argparse.Namespace(**{**vars(options), "mesh": axes}), target)
            found[name] = rehearse(other, conditions)
        except (ValueError, PassError, schedules.ScheduleError) as error:
            left.append(f"{name} is left out: {first_line(error)}")
    return "\n".join([compared(found), *left])


def _text_of(axes: Mapping[str, int]) -> str:
    return ",".join(f"{name}={size}" for name, size in axes.items())


def alternatives(axes: Mapping[str, int]) -> list[dict[str, int]]:
    """Returns meshes of as many devices: of each axis alone, and of each set of axes in sizes as equal as possible.

    The later an axis is, the larger it is, as its devices are neighbours.
    """
    count, found = math.prod(axes.values()), list[dict[str, int]]()
    for number in range(1, len(axes) + 1):
        for names in combinations(axes, number):
            sizes = dict(zip(names, sorted(_equal(count, number)), strict=True))
            mesh = {name: sizes.get(name, 1) for name in axes}
            if mesh not in found:
                found.append(mesh)
    return found


def _equal(count: int, number: int) -> list[int]:
    """Returns `number` factors of `count`: from the largest prime factor on, each one goes to the least product."""
    sizes, primes, rest = [1] * number, list[int](), count
    for each in range(2, count + 1):
        while rest % each == 0:
            primes.append(each)
            rest //= each
    for prime in reversed(primes):
        sizes[sizes.index(min(sizes))] *= prime
    return sizes


def _module_in(options: argparse.Namespace) -> bytes:
    """Returns the bytes of the file. Raises PlanError where it can't be a module, with a --target or without."""
    path, name = options.source, streams.display_name(options.source)
    _refuse(options, "a module", "shapes", "against")
    if options.mesh and len(options.mesh) > 1:
        raise PlanError(
            f"{name} is a module, whose meshes have their shapes: give --mesh mpmd={options.mesh['mpmd']} alone"
        )
    data = streams.read(path, "a lowered module")
    if data.lstrip()[:1] == b"<":
        raise PlanError(f"{name} is a page, expected a lowered module, or a plan that -o saved as .json")
    return data


def _refuse(options: argparse.Namespace, what: str, *names: str) -> None:
    """Raises PlanError where one of these options is given, which do not apply to such a SOURCE."""
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(options, name) is not None]
    if given:
        raise PlanError(f"{streams.display_name(options.source)} is {what}, which takes no {', '.join(given)}")


def _refuse_schedule(lowered: ir.Module) -> None:
    """Raises PlanError where a --schedule would be ignored, because the loop names one."""
    module = own_copy(lowered)
    run_passes(module, (InlineCalls(),))
    if loop_schedule(find_loop(main_of(module))):
        raise PlanError("--schedule is for a loop that names none: that of this step names its own")


def _of_function(options: argparse.Namespace, target: Target) -> Plan:
    """Returns the plan of a training step, or of the step that a function makes for a mesh."""
    module, _, name = options.source.partition(":")
    if "" in module.split("."):
        raise PlanError(f"{options.source}: {module!r} is no name of a module, expected package.module:function")
    function = getattr(importlib.import_module(module), name, None)
    if not callable(function):
        raise PlanError(f"{options.source}: the module has no function {name!r}")
    axes = options.mesh or {"mpmd": len(target.devices)}
    mesh = target.mesh(tuple(axes.values()), tuple(axes))
    if options.shapes:
        _check_takes(options.source, function, options.shapes, f"{len(options.shapes)} --shapes")

        def lowered(schedule: str | None) -> LoweredStep:
            limit, rare = options.memory_limit, jaxpp.StepOptions(host_memory_limit=options.host_memory_limit)
            step = jaxpp.mpmd_jit_with_loop(function, mesh, schedule=schedule, memory_limit=limit, options=rare)
            return step.lower(*options.shapes)

        if options.schedule:
            _refuse_schedule(source.parse(lowered(None).as_text().encode(), name, make_context(), whole=True))
        return _planned(partial(lowered, options.schedule))
    _refuse(options, "a function that makes its step itself", "schedule", *LIMITS)
    _check_takes(options.source, function, [mesh], "a mesh alone; give a training step its --shapes")
    made: Any = function(mesh)
    if not (isinstance(made, tuple) and len(made) == 2 and hasattr(made[0], "lower")):
        raise PlanError(f"{options.source} returned a {type(made).__name__}, expected (step, arguments)")
    step, arguments = made
    return _planned(partial(step.lower, *arguments))


def _planned(lower: Callable[[], Any]) -> Plan:
    """Returns the plan of a step, with the time of tracing, lowering and passes.

    Raises:
        PlanError: it is no step of jaxpp.
    """
    begin = time.perf_counter()
    lowered = lower()
    if not isinstance(lowered, LoweredStep):
        raise PlanError(f"lowering gave a {type(lowered).__name__}, expected a step of mpmd_jit_with_loop")
    lowered.program()
    seconds = time.perf_counter() - begin
    return dataclasses.replace(lowered.compile().plan, prepare_seconds=seconds)


def _check_takes(name: str, function: Callable[..., Any], given: Sequence[Any], what: str) -> None:
    """Raises PlanError where `function` does not take so many arguments."""
    try:
        inspect.signature(function).bind(*given)
    except TypeError as error:
        raise PlanError(f"{name} does not take {what}: {error}") from None


def _of_module(options: argparse.Namespace, target: Target, data: bytes) -> Plan:
    """Returns the plan of a lowered module; `data` is the content of its file."""
    path = options.source
    context = make_context()
    lowered = source.parse(data, path, context, whole=True)
    if options.schedule:
        _refuse_schedule(lowered)
    size = at.integer(lowered.operation, at.PARTITIONS) or 1
    count = (options.mesh or {}).get("mpmd", max(len(target.devices) // size, 1))
    has_name = "sym_name" in lowered.operation.attributes
    name = ir.StringAttr(lowered.operation.attributes["sym_name"]).value if has_name else path

    rates = Rates().on(target.chip, lowered)
    host_limit = limit_text(options.host_memory_limit, count, "host_memory_limit")

    def make(limits: str) -> tuple[ProgramModule, Plan]:
        shared = shared_from(target.devices[0].platform)
        passes = {"memory_limit": limits, "host_memory_limit": host_limit, "share_tasks": shared}
        program = rewritten(own_copy(lowered), options.schedule or "", count, passes, rates=rates)
        return program, plan_program(program, target, name.removeprefix("jit_")).plan

    return compile_within(
        limit_text(options.memory_limit, count), make, lambda made: (made[0].peak_bytes, made[1].peak_bytes)
    )[1]


def cli() -> None:
    """Runs the command `jaxpp-plan`."""
    jax.config.update("jax_platforms", "cpu")  # otherwise JAX looks for the devices whose compilers are installed
    sys.path.insert(0, os.getcwd())
    streams.finish(main)


if __name__ == "__main__":
    cli()
