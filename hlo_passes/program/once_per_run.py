"""`once-per-run`: gathers sharded weights, and scatters their gradients, once per run of a stage's tasks."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.once_per import check_choice
from jaxpp.hlo_passes.program.gathers import Gathers
from jaxpp.hlo_passes.program.runs import replace_values, tasks_of
from jaxpp.hlo_passes.program.scatters import ReducedSum, Scatters
from jaxpp.ir import attributes as at
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import has_side_effect
from jaxpp.ir.phases import main_line, main_of_phase
from jaxpp.ir.steps import Step, leave
from jaxpp.ir.train_loop import TrainLoopAttr
from jaxpp.ir.values import is_used

_GATHER = "sdy.sharding_constraint"


@dataclass(frozen=True)
class OncePerRun(Pass):
    """Calls `@gather_0` before, and `@scatter_0` after, each run of tasks that use weights sharded over the batch axis.

    A run is a sequence of tasks of one stage that follow one another on their mesh. Under a breadth-first schedule
    (arXiv 2211.05953) all forwards of a stage are one run, and all its backwards another. Copies of residuals read no
    weights and don't end a run. Where the stages of a mesh alternate, as in interleaved 1F1B, a run may be a single
    task.

    **Weights** that are sharded over the batch axis (FSDP) are gathered when they are used: those whose gather has
    `jaxpp.per_run`. One gather serves the whole run, and its results live until the last task of the run. Between
    two runs a mesh holds only the shards. So a mesh never holds more gathered weights than one stage has, or both
    stages of a fused task.

    With `ahead` the last task before a run also gathers for it. The task and the gather become one function, in which
    neither waits for the other, so that XLA can overlap them (FSDP's prefetch). The weights of the next run are then
    ready, and held, one task early. The gather stays a separate call for the first run of a mesh, after a weight
    gradient that a runtime may leave out, and after a user's function.

    **Gradients** of such weights are sums over the devices of the batch axis, of which each device keeps one shard:
    those whose reduction has `jaxpp.per_run`. In a run every device adds up its own summands, and one
    reduce-scatter serves the whole run. Before each run `@zeros_0` makes the zeros to which its tasks add, so that
    between two runs a mesh holds only the shards of the sums. The sums of the runs of a mesh are added up shard by
    shard, and then the sums of all meshes. So the order of additions differs from `scatter_gradients="step"`.

    Options:
        gather_weights: `chunk` or `ahead`, as in `delay-reductions`.

    Preconditions: `unroll-microbatches` ran.

    ```mlir
    %g = sdy.sharding_constraint %w {jaxpp.per_run}  ==>   %g0 = call @gather_0(%w)
    %a = call @forward_0(%g, %x0)                          %a = call @forward_0(%g0, %x0)
    %b = call @forward_0(%g, %x1)                          %b = call @forward_0(%g0, %x1)
    %c = call @forward_2(%h, %y)                           %c = call @forward_2(%h0, %y)
    %d = call @backward_0(%g, %dx)                         %g1 = call @gather_0(%w)
                                                           %d = call @backward_0(%g1, %dx)

    %s0 = call @backward_0(%x0, %zeros)              ==>   %z0 = call @zeros_0()
    %s1 = call @backward_0(%x1, %s0)                       %s0 = call @backward_0(%x0, %z0)
    %d = call @backward_2(%y)                              %s1 = call @backward_0(%x1, %s0)
    %s2 = call @backward_0(%x2, %s1)                       %g0 = call @scatter_0(%s1)
    %g = reduce add %s2 across [0] {jaxpp.per_run}         %d = call @backward_2(%y)
                                                           %z1 = call @zeros_0()
                                                           %s2 = call @backward_0(%x2, %z1)
                                                           %g = call @scatter_1(%s2, %g0)
    ```
    """

    gather_weights: str = "chunk"

    def __post_init__(self) -> None:
        check_choice("gather_weights", self.gather_weights)

    def run(self, module: ir.Module) -> None:
        """Gathers weights and scatters sums for each run in `@main`.

        Raises PassError if anything but a task uses gathered weights, or if a marked reduction reduces anything but a
        sum over tasks. Also raises it for sums if the steps of a `train_loop` overlap: a run could then have tasks of
        several steps.
        """
        line = main_of_phase(module, placed=False)
        marked = [step for step in line.steps if step.function is None and at.PER_RUN in step.attributes]
        reduces = [step for step in marked if step.name == "stablehlo.reduce"]
        gathers = [step for step in marked if step.name != "stablehlo.reduce"]
        if not marked:
            leave(module, line)
            return
        tasks = [tasks_of(line.steps, mesh) for mesh in range(line.meshes)]
        constraints = [step.op for step in gathers if step.name == _GATHER]
        gathering = Gathers(module, constraints, self.gather_weights == "ahead")
        for mesh, each in enumerate(tasks):
            gathering.call(mesh, each)
        gathering.rename(line.steps)
        for step in reversed(gathers):
            if any(map(is_used, step.results)):
                raise PassError(f"something else than a task uses what has {at.PER_RUN}", location=step.op.location)
            step.op.erase()
        if reduces:
            _check_steps(module, reduces[0].op)
        makers = {result: step for step in line.steps for result in step.results}
        sums = [ReducedSum(number, step, makers) for number, step in enumerate(reduces)]
        scattering = Scatters(module, sums)
        for mesh, each in enumerate(tasks):
            scattering.call(mesh, each)
        totals = {each.reduce: each.total() for each in sums if each.totals}
        replace_values(line.steps, {step.results[0]: total for step, (total, _) in totals.items()})
        steps, gone = list[Step](), set(gathers)
        for step in line.steps:
            if step in totals:
                steps += totals[step][1]
            if step not in gone:
                calls = gathering.before.get(step), scattering.before.get(step), step, scattering.after.get(step)
                steps += filter(None, calls)
        leave(module, main_line(module, _without_dead(steps), placed=False))


def _without_dead(steps: Sequence[Step]) -> list[Step]:
    """Erases operations that nothing uses any more, such as replaced reductions; returns the others."""
    kept: list[Step] = []
    for step in reversed(steps):
        if step.callee or any(map(is_used, step.results)) or has_side_effect(step.op):
            kept.append(step)
        else:
            step.op.erase()
    return kept[::-1]


def _check_steps(module: ir.Module, reduce: ir.Operation) -> None:
    loop = TrainLoopAttr.of(module)
    if loop is not None and loop.schedule:
        raise PassError(
            "scatter_gradients is 'chunk', for the runs of one step, but the steps of the train_loop overlap",
            location=reduce.location,
            hint='take scatter_gradients="step", or a loop without a delay',
        )
