"""The memory that the devices of a mesh report."""

from collections import Counter

from jaxpp.lowering.mesh import MpmdMesh


def memory_of_devices(mesh: MpmdMesh) -> int | None:
    """Returns the bytes that each device of this process has for one mesh; None if devices don't report it (CPUs)."""
    here = [each for sub in mesh.unstack for each in sub.local_devices] if mesh.runs_here else []
    meshes_of_one = max(Counter(here).values(), default=1)
    found = [device.memory_stats() for device in here]
    sizes = [stats["bytes_limit"] for stats in found if stats and "bytes_limit" in stats]
    return min(sizes) // meshes_of_one if sizes else None
