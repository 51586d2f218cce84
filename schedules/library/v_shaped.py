"""V-shaped placements, down the meshes and up again.

Mesh i of p holds the stages i and 2p - 1 - i, so the first mesh holds the first and the last stage.
"""

from __future__ import annotations

from jaxpp.schedules.builders.blocks import block
from jaxpp.schedules.builders.language import B, F, I, MeshOrder, Plan, W
from jaxpp.schedules.builders.priorities import by_priority
from jaxpp.schedules.errors import ScheduleError, multiple_of, whole_number
from jaxpp.schedules.library.classic import EQUAL, oldest_backward
from jaxpp.schedules.model.schedule import Schedule
from jaxpp.schedules.model.task import Placement


def zb_v(meshes: int, microbatches: int) -> Schedule:
    """No bubble in 1F1B's memory without jax.checkpoint, where all tasks take equally long (ZB-V, arXiv 2401.10241).

    With at least 2p microbatches and T_F = T_B = T_W the longest stage takes mT, and each mesh keeps p activations.

    Args:
        meshes: number of meshes p, at least 1.
        microbatches: at least 1.

    Raises:
        ScheduleError: a count is below 1.
    """
    plan = Plan("zb-v", Placement.waves(meshes, 2), microbatches)
    for i, mesh in enumerate(plan):
        down, up = i, 2 * meshes - 1 - i
        mesh.warm_up(F(down) * (2 * (meshes - i) - 1), (F(up) + F(down)) * i, (F(up) + I(up) + W()) * (meshes - i))
        # The order is written for at least as many microbatches as fill the pipeline. Tasks of missing microbatches are
        # left out.
        steady = max(microbatches, 2 * meshes - 1) - meshes
        mesh.repeat(F(down) + I(down) + W() + F(up) + I(up) + W(), times=steady)
        mesh.cool_down((I(down) + I(up)) * i, (I(down) + W(down)) * (meshes - i))
        mesh.repeat(W(up))
        mesh.repeat(W(down))
    return plan.draft()


def stp(meshes: int, microbatches: int) -> Schedule:
    """A forward and a backward of each stage as one task, in a V (after STP, arXiv 2510.27257).

    The units of the two passes alternate, so that devices compute while they sum (`jaxpp.mark_unit_end`). Weight
    gradients are tasks of their own only in the warm-up and the cool-down, where they fill bubbles. The paper gives its
    order as a diagram. This order is ZB-V with the tasks of its steady state in pairs. Each mesh keeps p activations,
    and any number of microbatches is possible.

    Args:
        meshes: number of meshes p, at least 1.
        microbatches: at least 1.

    Raises:
        ScheduleError: a count is below 1.
    """
    plan = Plan("stp", Placement.waves(meshes, 2), microbatches)
    for i, mesh in enumerate(plan):
        down, up = i, 2 * meshes - 1 - i
        mesh.warm_up(F(down) * (2 * (meshes - i) - 1), (F(up) + F(down)) * i, (F(up) + I(up) + W()) * (meshes - i))
        mesh.repeat(F(down) & B(down), F(up) & B(up), times=max(microbatches, 2 * meshes - 1) - meshes + 1)
        mesh.cool_down((I(down) + I(up)) * i, (I(down) + W(down)) * (meshes - i))
        mesh.repeat(W())
    return plan.draft()


def v_half(meshes: int, microbatches: int) -> Schedule:
    """Half of 1F1B's memory, half of its bubble (V-Half, Controllable Memory, arXiv 2405.15362).

    With T_F = T_B = T_W and at least 2p microbatches each mesh keeps (p + 2) // 2 activations. The bubble is 3p - 7
    stage times for an even p of at least 4, and 3p - 4 for an odd p. The bubble of 1F1B is 6(p - 1).

    Args:
        meshes: number of meshes p, at least 1.
        microbatches: at least 1.

    Raises:
        ScheduleError: a count is below 1.
    """
    meshes = whole_number(meshes, "meshes", least=1)
    gap = 0 if meshes % 2 else 3
    slots = {}
    for i in range(meshes):
        down, up = i, 2 * meshes - 1 - i
        slots |= {F(down): 2 * i, F(up): 3 * meshes - i - 2}
        slots |= {I(up): 3 * meshes + gap + 2 * i - 1, I(down): 6 * meshes + gap - i - 2}
    return block("v-half", Placement.waves(meshes, 2), microbatches, slots, tighten=True)


def v_min(meshes: int, microbatches: int) -> Schedule:
    """A third of 1F1B's memory, two thirds of its bubble (V-Min, Controllable Memory, arXiv 2405.15362).

    With T_F = T_B = T_W and at least 2p microbatches each mesh keeps (p + 4) // 3 activations. The bubble is 4p - 7
    stage times if p is a multiple of 3, and 4p - 5 otherwise.

    Args:
        meshes: number of meshes p, at least 1.
        microbatches: at least 1.

    Raises:
        ScheduleError: a count is below 1.
    """
    meshes = whole_number(meshes, "meshes", least=1)
    gap = 0 if meshes % 3 else 2
    stages = range(2 * meshes)
    slots = {F(stage): stage for stage in stages} | {I(stage): 4 * meshes + gap - 1 - stage for stage in stages}
    return block("v-min", Placement.waves(meshes, 2), microbatches, slots, tighten=True)


def hanayo(meshes: int, microbatches: int, chunks: int = 2) -> Schedule:
    """Waves down and up the meshes (Hanayo, arXiv 2308.15762): Chimera's bubble without a second copy of the weights.

    Each mesh takes a backward that is ready, or else a forward. Stage s of S keeps at most S - s activations. Which
    tasks are ready is decided with T_F = T_B. With these times and a multiple of p microbatches the schedule takes mT +
    (p - 1)T/v.

    Args:
        meshes: number of meshes p, at least 1.
        microbatches: at least 1.
        chunks: stages per mesh v, two for each wave.

    Raises:
        ScheduleError: a count is below 1, or the chunks are odd.
    """
    placement = Placement.waves(meshes, chunks)
    multiple_of(2, chunks, "hanayo: chunks", "a wave goes down and up")
    stages = placement.stages
    return by_priority(
        "hanayo", placement, microbatches, oldest_backward, limit=lambda stage: stages - stage, costs=EQUAL
    )


def dualpipe_v(meshes: int, microbatches: int, fused: bool = False) -> Schedule:
    """DualPipe cut in half (DualPipeV, DeepSeek-AI and Sea AI Lab 2025; DualPipe: arXiv 2412.19437, section 3.2.1).

    Both directions of DualPipe run in one V: the forward of one stage of a mesh is paired with the backward of the
    mesh's other stage. A mesh keeps the activations of 2p + 1 stages.

    Args:
        meshes: number of meshes p, at least 1.
        microbatches: at least 2p.
        fused: run these pairs as one task, which pays only where a program overlaps them; serial otherwise.

    Raises:
        ScheduleError: there are fewer microbatches than 2p.
    """
    placement = Placement.waves(meshes, 2)
    microbatches = whole_number(microbatches, "microbatches", least=1)
    if microbatches < 2 * meshes:
        found = f"two per mesh, found {microbatches}"
        raise ScheduleError(f"dualpipe-v: microbatches must be at least {2 * meshes}, {found}")
    plan = Plan("dualpipe-v", placement, microbatches)
    for i, mesh in enumerate(plan):
        write_dual(mesh, i, 2 * meshes - 1 - i, microbatches, meshes, i, fused)
    return plan.draft()


def write_dual(mesh: MeshOrder, a: int, b: int, microbatches: int, meshes: int, before: int, fused: bool) -> None:
    """Writes the order of DualPipe or DualPipeV for one mesh.

    Args:
        mesh: the order to write.
        a: the stage that the mesh begins with.
        b: the mesh's other stage.
        microbatches: of each of the two stages.
        meshes: meshes from the end of the pipeline to its fold.
        before: how many of these meshes come before this mesh.
        fused: join a forward and a backward to one cell.
    """
    left, half = meshes - 1 - before, (before + 1) // 2
    turns = (F(a) & B(b), F(b) & B(a)) if fused else (F(a) + B(b), F(b) + B(a))
    mesh.warm_up(F(a) * 2 * left, (F(a) + F(b)) * (before + 1), (I(b) + W() + F(b)) * left)
    if not left:
        # At the fold the first pair is not fused, because the forward and the backward in turn end sooner.
        mesh.run(F(a) + B(b) + turns[1])
    mesh.repeat(*turns, times=microbatches - 2 * meshes + before + (left > 0))
    mesh.cool_down((B(b) + turns[1]) * left)
    # The first of these backwards are whole, the later ones are split. Whether a is split one pair before b differs
    # from mesh to mesh.
    mesh.cool_down((B(b) + B(a)) * half, (B(b) + I(a)) * (1 - before % 2), (I(b) + I(a)) * half)
    mesh.cool_down((W() + I(a)) * left, W() * (before + 1))
