"""The microbatch loop in its canonical form (docs/ir.md, section 2)."""

from dataclasses import dataclass
from functools import lru_cache

from jaxlib.mlir import ir

from jaxpp import schedules
from jaxpp.hlo_passes.base import PassError
from jaxpp.hlo_passes.ir import attributes as at
from jaxpp.hlo_passes.ir.functions import body_of, main_of, operations


def entries(loop: ir.Operation) -> dict[str, ir.Attribute]:
    """What `jaxpp.microbatch_loop` says; empty for a loop without it."""
    attribute = loop.attributes.get(at.LOOP)
    if attribute is None:
        return {}
    fields = at.dictionary(attribute) if isinstance(attribute, ir.DictAttr) else None
    kinds = {"length": ir.IntegerAttr, "schedule": ir.StringAttr}
    if fields is None or any(name in fields and not isinstance(fields[name], kind) for name, kind in kinds.items()):
        raise PassError(
            f"unknown form of {at.LOOP}: {attribute}",
            location=loop.location,
            hint='it is a dictionary: {length = 8 : i64, schedule = "..."}',
        )
    return fields


@lru_cache(maxsize=1)  # several passes after one another read the same text, which may be long
def _parsed(text: str) -> schedules.Schedule:
    return schedules.parse(text)


@dataclass(frozen=True)
class MicrobatchLoop:
    """A `stablehlo.while` that `find-microbatch-loop` canonicalized."""

    op: ir.Operation
    length: int
    stages: int
    schedule: str
    indices: list[int]
    starts: list[int]
    steps: list[int]

    @property
    def body(self) -> ir.Block:
        """The block that runs once per microbatch."""
        return self.op.regions[1].blocks[0]

    @property
    def plan(self) -> schedules.Schedule:
        """The schedule itself. Raises PassError when its text is none."""
        try:
            return _parsed(self.schedule)
        except schedules.ScheduleError as error:
            raise PassError(str(error), location=self.op.location) from error

    @staticmethod
    def of(module: ir.Module) -> "MicrobatchLoop":
        """The loop of `module`. Raises PassError when `find-microbatch-loop` has not run."""
        main = main_of(module)
        for op in operations(body_of(main)):
            if at.LOOP in op.attributes:
                fields = entries(op)
                if {"length", "stages", "schedule", "indices", "starts", "steps"} <= set(fields):
                    return MicrobatchLoop(
                        op,
                        ir.IntegerAttr(fields["length"]).value,
                        ir.IntegerAttr(fields["stages"]).value,
                        ir.StringAttr(fields["schedule"]).value,
                        list(ir.DenseI64ArrayAttr(fields["indices"])),
                        list(ir.DenseI64ArrayAttr(fields["starts"])),
                        list(ir.DenseI64ArrayAttr(fields["steps"])),
                    )
        raise PassError(
            "no microbatch loop in its canonical form", location=main.location, hint="run find-microbatch-loop first"
        )

    def write(self) -> None:
        """Write this on the loop, as `jaxpp.microbatch_loop`."""
        self.op.attributes[at.LOOP] = ir.DictAttr.get(
            {
                "length": at.i64(self.length),
                "schedule": ir.StringAttr.get(self.schedule),
                "stages": at.i64(self.stages),
                "indices": at.i64s(self.indices),
                "starts": at.i64s(self.starts),
                "steps": at.i64s(self.steps),
            }
        )
