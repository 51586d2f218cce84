"""`run-ahead`, a schedule in a package of its own."""

from jaxpp.schedules import B, F, Placement, Plan, Schedule


def run_ahead(meshes: int, microbatches: int, ahead: int = 2) -> Schedule:
    """1F1B with more forwards before the first backward.

    Args:
        meshes: number of meshes.
        microbatches: number of microbatches.
        ahead: how many more forwards each mesh runs ahead than in 1F1B.
    """
    plan = Plan("run-ahead", Placement.linear(meshes), microbatches)
    for stage, mesh in enumerate(plan):
        mesh.warm_up(F(stage) * (meshes - 1 - stage + ahead))
        mesh.repeat(F(stage) + B(stage))
    return plan.schedule()
