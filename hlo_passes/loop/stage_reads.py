"""Which stages read which, as the forward marks of the microbatch loop say."""

from jaxpp.hlo_passes.loop.batch_values import made_of_batch
from jaxpp.ir import boundary
from jaxpp.ir.functions import operations
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.numbered import Numbered

Reads = tuple[tuple[int, ...], ...]
"""For each stage those whose results it reads, all of them earlier ones."""


def stage_reads(loop: MicrobatchLoop) -> Reads:
    """The stages that each stage reads, as `Placement.after` has them.

    An operation before several marks belongs to the first of these stages, and the others read that stage, unless it
    needs the microbatch alone: then each stage can make it for itself. The last stage comes after all that no other
    stage reads, as whatever follows the last mark may use it.
    """
    numbered = Numbered(operations(loop.body)[:-1])
    of_batch, maker = made_of_batch(loop, numbered), dict[int, int]()
    found: list[set[int]] = [set() for _ in range(loop.stages)]
    marks = [(boundary.read(op), number) for number, op in enumerate(numbered.ops) if boundary.is_mark(op)]
    for stage, number in sorted((mark.stage, number) for mark, number in marks if mark.phase == "forward"):
        waiting = [number]
        while waiting:
            each = waiting.pop()
            if each in maker:
                found[stage].add(maker[each])
            elif each not in of_batch:
                maker[each] = stage
                waiting += numbered.makers[each]
    *others, last = found
    last |= set(range(len(others))).difference(*others)
    return tuple(tuple(sorted(read - {stage})) for stage, read in enumerate(found))
