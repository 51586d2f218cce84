"""`StepOptions`: the options of `mpmd_jit_with_loop` that few steps need."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict, cast

from jaxpp.hlo_passes import Pass
from jaxpp.hlo_passes.loop.delay_reductions import DelayReductions
from jaxpp.hlo_passes.pipelines import mpmd
from jaxpp.hlo_passes.program.share_functions import ShareFunctions
from jaxpp.memory.limit import Limit, limit_text
from jaxpp.schedules import Costs


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """Options of `mpmd_jit_with_loop` that few steps need.

    Attributes:
        operations: a user's function for each kind of task that jaxpp doesn't run itself. It is called where the
            schedule has such a task, with the arguments that its parameters name: `task`, a `schedules.Task`, and
            `residuals`, the arrays that the stage keeps from the forward to the backward of that microbatch. These may
            still be under computation, and are valid until the function returns. A function under `jax.jit` runs on the
            devices of its mesh, in their order. Any other function runs on the host, in the thread that starts tasks;
            later tasks wait for it. Its result is not used. An exception that it raises ends the step.
        gather_weights: when to gather weights that are sharded over the axis of the batch (FSDP). "microbatch": for
            each microbatch. "chunk": for each run of tasks of one stage; in a breadth-first schedule a run has all
            microbatches. "ahead": for each run too, but in the last task of the run before. "step": once per step.
            `lower(...).program().once_per_step_bytes` has the bytes per device that "step" costs.
        scatter_gradients: when to sum the gradients of such weights over that axis and scatter them. "microbatch": for
            each microbatch, so a device only ever keeps its shards of the sums. "chunk": for each such run; during a
            run of backwards a device has the whole sums of their stage, and its shards between runs. "step": once per
            step; until then a device has the whole sums of all stages of its mesh.
        share_tasks: whether tasks of the first and last stage call the program of a middle stage for the layers, and
            another program for the rest. Less is compiled, for one more call in each such task. "always" shares;
            "never" calls one program per task. A number of FLOPs per device, such as "1e9", shares tasks of at least as
            many. "auto" is 1e7 on CPUs and 1e11 elsewhere: there the additional call costs little.
        host_memory_limit: the most bytes in host memory at once for the values of each device: offloaded residuals,
            arguments and results. In the same forms as `memory_limit`.
        costs: the durations of tasks, copies and sends, as `compiled.costs(events)` measures them. Only the search for
            `memory_limit` uses them. None: durations are estimated from FLOPs, and for a `jaxpp.target` from the
            bandwidths of its chip.
        passes: passes of your own, each with the name of the pass of `mpmd` after which it runs:
            `[("outline-stages", MyPass())]`. The module is verified after each of them (docs/your-first-pass.md).
    """

    operations: Mapping[str, Callable[..., Any]] | None = None
    gather_weights: str = "microbatch"
    scatter_gradients: str = "microbatch"
    share_tasks: str = "auto"
    host_memory_limit: Limit = None
    costs: Costs | None = None
    passes: Sequence[tuple[str, Pass]] = ()

    def of_pipeline(self, meshes: int) -> dict[str, Any]:
        """Returns the options of `mpmd` by keyword.

        Raises:
            TypeError, ValueError: an option is invalid.
        """
        delays = {"gather_weights": self.gather_weights, "scatter_gradients": self.scatter_gradients}
        DelayReductions(**delays)  # raises ValueError for an invalid choice
        if self.costs is not None and not isinstance(cast("object", self.costs), Costs):
            found = type(self.costs).__name__
            raise TypeError(f"costs: expected jaxpp.schedules.Costs, found {found}; Costs.load reads a file")
        share = self.share_tasks if self.share_tasks == "auto" else ShareFunctions(self.share_tasks).when
        limit = limit_text(self.host_memory_limit, meshes, "host_memory_limit")
        for each in cast("Sequence[object]", self.passes):
            if not (isinstance(each, tuple) and len(each) == 2 and isinstance(each[1], Pass)):
                raise TypeError(f"passes: expected pairs such as ('outline-stages', MyPass()), found {each!r}")
        mpmd(own=self.passes)  # raises ValueError for an unknown name
        return {**delays, "share_tasks": share, "host_memory_limit": limit, "own": tuple(self.passes)}


class OtherKeywords(TypedDict, total=False):
    """JaxPP's names of arguments of `mpmd_jit_with_loop`, and for one release the older fields of `StepOptions`."""

    in_specs: Any
    out_specs: Any
    operations: Mapping[str, Callable[..., Any]] | None
    gather_weights: str
    scatter_gradients: str
    share_tasks: str
    host_memory_limit: Limit
    costs: Costs | None


def with_keywords(options: StepOptions | None, keywords: Mapping[str, Any]) -> StepOptions:
    """Returns the options, with the fields that are given as keywords of `mpmd_jit_with_loop`, and warns of these.

    Raises:
        TypeError: a keyword is unknown, or `options` is of another type.
    """
    options = StepOptions() if options is None else options
    if not isinstance(cast("object", options), StepOptions):
        raise TypeError(f"options: expected jaxpp.StepOptions, found {type(options).__name__}")
    old = {name: value for name, value in keywords.items() if name not in ("in_specs", "out_specs")}
    for name in old.keys() - OtherKeywords.__annotations__.keys():
        raise TypeError(f"mpmd_jit_with_loop() got an unexpected keyword argument '{name}'")
    if old:
        fields_given = ", ".join(f"{name}=..." for name in old)
        message = f"mpmd_jit_with_loop: {fields_given} is deprecated: options=jaxpp.StepOptions({fields_given})"
        warnings.warn(message, DeprecationWarning, stacklevel=3)
    return replace(options, **old)
