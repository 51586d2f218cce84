"""Down the meshes and up again: mesh i of p holds the stages i and 2p - 1 - i, the first mesh the first and last."""

from __future__ import annotations

from jaxpp.schedules.errors import ScheduleError, whole_number
from jaxpp.schedules.library.building_block import Block, repeat
from jaxpp.schedules.library.greedy import Pipeline, backward_first
from jaxpp.schedules.library.orders import Cell, Row, multiple
from jaxpp.schedules.schedule import Schedule
from jaxpp.schedules.task import Placement


def zb_v(meshes: int, microbatches: int) -> Schedule:
    """No bubble in 1F1B's memory, where all tasks take equally long (ZB-V, arXiv 2401.10241).

    With at least 2p microbatches and T_F = T_B = T_W the longest stage is mT, and each mesh keeps p activations.

    Args:
        meshes: number of meshes p, at least 1.
        microbatches: at least 1.

    Raises:
        ScheduleError: a count is below 1.
    """
    placement = Placement.waves(meshes, 2)
    microbatches = whole_number(microbatches, "microbatches", least=1)
    return Schedule.of("zb-v", placement, [_zb_v_row(meshes, mesh, microbatches) for mesh in range(meshes)])


def _zb_v_row(meshes: int, mesh: int, microbatches: int) -> list[Cell]:
    row, down, up = Row(microbatches), mesh, 2 * meshes - 1 - mesh
    for _ in range(2 * (meshes - mesh) - 1):
        row.forward(down)
    for _ in range(mesh):
        row.forward(up)
        row.forward(down)
    for _ in range(meshes - mesh):
        row.forward(up)
        row.backward(up, split=True)
        row.weight_grad()
    # Written for as many microbatches as fill the pipeline; what there are fewer of is left out.
    enough = max(microbatches, 2 * meshes - 1)
    while row.count("forward", up) < enough:
        if row.count("forward", down) < enough:
            row.forward(down)
        row.backward(down, split=True)
        row.weight_grad()
        row.forward(up)
        row.backward(up, split=True)
        row.weight_grad()
    for _ in range(mesh):
        row.backward(down, split=True)
        row.backward(up, split=True)
    for _ in range(meshes - mesh):
        row.backward(down, split=True)
        row.weight_grad(down)
    for stage in (up, down):
        for _ in range(microbatches):
            row.weight_grad(stage)
    return row.cells


def v_half(meshes: int, microbatches: int) -> Schedule:
    """Half of 1F1B's memory, half of its bubble (V-Half, Controllable Memory, arXiv 2405.15362).

    With T_F = T_B = T_W and at least 2p microbatches each mesh keeps (p + 2) // 2 activations, and the bubble is 3p - 7
    stage times for an even p from 4 on, 3p - 4 for an odd one, where 1F1B's is 6(p - 1).

    Args:
        meshes: number of meshes p, at least 1.
        microbatches: at least 1.

    Raises:
        ScheduleError: a count is below 1.
    """
    meshes = whole_number(meshes, "meshes", least=1)
    gap = 0 if meshes % 2 else 3
    return _from_block(
        "v-half",
        [(2 * i, 3 * meshes - i - 2, 3 * meshes + gap + 2 * i - 1, 6 * meshes + gap - i - 2) for i in range(meshes)],
        microbatches,
    )


def v_min(meshes: int, microbatches: int) -> Schedule:
    """A third of 1F1B's memory, two thirds of its bubble (V-Min, Controllable Memory, arXiv 2405.15362).

    With T_F = T_B = T_W and at least 2p microbatches each mesh keeps (p + 4) // 3 activations, and the bubble is 4p - 7
    stage times where p is a multiple of 3, else 4p - 5.

    Args:
        meshes: number of meshes p, at least 1.
        microbatches: at least 1.

    Raises:
        ScheduleError: a count is below 1.
    """
    meshes = whole_number(meshes, "meshes", least=1)
    gap = 0 if meshes % 3 else 2
    return _from_block(
        "v-min",
        [(i, 2 * meshes - i - 1, 2 * meshes + gap + i, 4 * meshes + gap - i - 1) for i in range(meshes)],
        microbatches,
    )


def _from_block(name: str, block: Block, microbatches: int) -> Schedule:
    placement = Placement.waves(len(block), 2)
    microbatches = whole_number(microbatches, "microbatches", least=1)
    return Schedule.of(name, placement, repeat(block, microbatches))


def hanayo(meshes: int, microbatches: int, chunks: int = 2) -> Schedule:
    """Waves down and up the meshes (Hanayo, arXiv 2308.15762): Chimera's bubble without a second copy of the weights.

    Each mesh takes a backward that is ready, else a forward, as long as stage s of S keeps at most S - s activations;
    ready is decided with T_F = T_B. With these times and a multiple of p microbatches it takes mT + (p - 1)T/v.

    Args:
        meshes: number of meshes p, at least 1.
        microbatches: at least 1.
        chunks: stages per mesh v, two for each wave.

    Raises:
        ScheduleError: a count is below 1, or the chunks are odd.
    """
    placement = Placement.waves(meshes, chunks)
    multiple(chunks, 2, "hanayo: chunks", "a wave goes down and up")
    microbatches = whole_number(microbatches, "microbatches", least=1)
    homes = [mesh for mesh, *_ in placement.homes]
    pipeline = Pipeline(homes, range(microbatches), lambda stage: placement.stages - stage)
    return Schedule.of("hanayo", placement, backward_first([pipeline], backward=1))


def dualpipe_v(meshes: int, microbatches: int, fused: bool = False) -> Schedule:
    """DualPipe cut in half (DualPipeV, DeepSeek-AI and Sea AI Lab 2025; DualPipe: arXiv 2412.19437, section 3.2.1).

    Both directions of DualPipe in one V: the forward of one stage of a mesh goes with the backward of its other one.
    It keeps 2p + 1 stages' activations.

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
    rows: list[list[Cell]] = []
    for mesh in range(meshes):
        row = Row(microbatches)
        dual_row(row, mesh, 2 * meshes - 1 - mesh, meshes, mesh, fused)
        rows.append(row.cells)
    return Schedule.of("dualpipe-v", placement, rows)


def dual_row(row: Row, first: int, second: int, meshes: int, mesh: int, fused: bool) -> None:
    """Write the order of DualPipe and DualPipeV, for the mesh at a distance `mesh` from the end of `meshes` of them.

    Args:
        row: to write to; its microbatches are those of each of the two stages.
        first: the stage that the mesh begins with.
        second: its other one.
        meshes: meshes between the end of the pipeline and its fold.
        mesh: meshes before this one.
        fused: join a forward and a backward to one cell.
    """
    left = meshes - mesh - 1
    for _ in range(2 * left):
        row.forward(first)
    for _ in range(mesh + 1):
        row.forward(first)
        row.forward(second)
    for _ in range(left):
        row.backward(second, split=True)
        row.weight_grad()
        row.forward(second)
    for step in range(row.microbatches - 2 * meshes + mesh + 1):
        # At the fold the first pair is one after the other, which ends sooner.
        row.both(first, second, fused and (step > 0 or left > 0))
        row.both(second, first, fused)
    for _ in range(left):
        row.backward(second)
        row.both(second, first, fused)
    # Halfway the backwards are split, at a stage that differs from mesh to mesh.
    half = (mesh + 1) // 2
    for step in range(mesh + 1):
        row.backward(second, split=step > half or (step == half and mesh % 2 == 1))
        row.backward(first, split=step >= half)
    for _ in range(left):
        row.weight_grad()
        row.backward(first, split=True)
    for _ in range(mesh + 1):
        row.weight_grad()
