"""The order in which stacked layers are stored."""

from typing import Any

import numpy as np
import pytest

from jaxpp import schedules as S
from jaxpp.schedules.layers import rows_of_layers, stored_rows


@pytest.mark.parametrize("meshes", [2, 4])
@pytest.mark.parametrize("name", [name for name in S.names() if not name.startswith("vocab")])  # shards are no layers
def test_each_mesh_has_one_block_with_the_layers_of_its_stages(name: str, meshes: int) -> None:
    plan = S.make(name, meshes=meshes, microbatches=8)
    layers = 3 * plan.stages
    rows = rows_of_layers(plan, layers)
    assert sorted(rows) == list(range(layers))
    homes = [plan.placement[stage] for stage in range(plan.stages)]
    assert [row // (layers // meshes) for row in rows] == np.repeat(homes, 3).tolist()
    for mesh in range(meshes):
        mine = np.argsort(rows)[mesh * (layers // meshes) :][: layers // meshes]
        assert (mine == np.sort(mine)).all(), "in the order of the model"


def test_classes_schedules_and_placements_are_alike() -> None:
    expected = [0, 2, 3, 1]
    plans = [S.DualPipeV(4, 2), S.DualPipeV(4, 2).build(4), S.Placement.waves(2, 2)]
    assert [rows_of_layers(plan, 4).tolist() for plan in plans] == [expected] * 3


def test_a_class_of_the_users_own() -> None:
    class Backwards(S.GPipe):
        def get_mpmd_idx(self, stage_id: int) -> int:
            return self.num_stages - 1 - stage_id

    assert rows_of_layers(Backwards(3), 3).tolist() == [2, 1, 0]


@pytest.mark.parametrize(
    ("schedule", "layers", "message"),
    [
        (S.Std1F1B(3), 4, "4 layers can't be cut into 3 stages of equally many"),
        (S.Std1F1B(3), 0, "the number of layers must be a whole number of at least 1, found 0"),
        (
            S.Placement.of(0, 1, 0),
            3,
            "the meshes must be the homes of equally many stages, found 2 on mesh 0, 1 on mesh 1",
        ),
        (
            "1f1b",
            4,
            "expected a schedule or a placement, found '1f1b'; "
            "a name or a file: jaxpp.schedules.resolve(it, meshes=..., microbatches=...)",
        ),
    ],
)
def test_what_has_no_such_order(schedule: Any, layers: int, message: str) -> None:
    with pytest.raises(S.ScheduleError) as info:
        rows_of_layers(schedule, layers)
    assert str(info.value) == message


@pytest.mark.parametrize("cuts", [[3, 1.0], "31", 3, [True, 3]])
def test_cuts_that_are_no_whole_numbers(cuts: Any) -> None:
    for call in (
        lambda: rows_of_layers(S.Placement.of(0, 1), 4, cuts),
        lambda: stored_rows(S.Placement.of(0, 1), cuts),
    ):
        with pytest.raises(
            TypeError, match=r"^cuts: expected the layers of each stage, such as \[5, 5, 4, 2\], found "
        ):
            call()


def test_cuts_of_numpy() -> None:
    cuts: Any = np.array([1, 3])
    assert rows_of_layers(S.Placement.of(0, 1), 4, cuts).tolist() == [0, 3, 4, 5]
    with pytest.raises(S.ScheduleError, match=r"^the cuts \(1, 3\) are of 4 layers, found 5$"):
        rows_of_layers(S.Placement.of(0, 1), 5, cuts)
