"""A JAX mesh of which one axis, the mpmd axis, counts groups of devices that run different programs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jax.sharding import Mesh


@dataclass(frozen=True)
class MpmdMesh:
    """`jax_mesh` seen as `mpmd_dim` meshes along its axis `mpmd_axis_name`.

    The mpmd axis may stand at any position. Every submesh keeps it, with size 1, so that a `PartitionSpec` over the
    other axes means the same on the whole mesh, on one submesh and on several. Axis types (Auto, Explicit) are kept.

    Args:
        jax_mesh: all devices.
        mpmd_axis_name: the axis along which the meshes lie.

    Raises:
        ValueError: `jax_mesh` has no axis of that name.
    """

    jax_mesh: Mesh
    mpmd_axis_name: str

    def __post_init__(self) -> None:
        if not isinstance(self.jax_mesh, Mesh):  # pyright: ignore[reportUnnecessaryIsInstance]  # users have no checker
            raise TypeError(f"MpmdMesh: expected a jax.sharding.Mesh, found {type(self.jax_mesh).__name__}")
        if self.mpmd_axis_name not in self.jax_mesh.axis_names:
            axes = ", ".join(f"{name!r} ({size})" for name, size in self.jax_mesh.shape.items())
            raise ValueError(f"MpmdMesh: the mesh has no axis {self.mpmd_axis_name!r}; its axes are {axes or 'none'}")

    @property
    def mpmd_axis(self) -> int:
        """The position of the mpmd axis among the axes."""
        return self.jax_mesh.axis_names.index(self.mpmd_axis_name)

    @property
    def mpmd_dim(self) -> int:
        """The number of meshes."""
        return self.jax_mesh.shape[self.mpmd_axis_name]

    @cached_property
    def unstack(self) -> list[Mesh]:
        """The meshes, one per mpmd index, each with the mpmd axis of size 1."""
        return [self.mpmd_submesh([k]).jax_mesh for k in range(self.mpmd_dim)]

    def mpmd_submesh(self, mpmd_indices: Sequence[int]) -> "MpmdMesh":
        """The meshes of `mpmd_indices`, in that order, as one mesh.

        Raises:
            ValueError: an index is not in the mesh.
        """
        wrong = [k for k in mpmd_indices if not 0 <= k < self.mpmd_dim]
        if wrong or not mpmd_indices:
            raise ValueError(f"mpmd_submesh: indices {list(mpmd_indices)} of a mesh with {self.mpmd_dim} mpmd groups")
        devices = np.take(self.jax_mesh.devices, list(mpmd_indices), self.mpmd_axis)
        mesh = Mesh(devices, self.jax_mesh.axis_names, axis_types=self.jax_mesh.axis_types)
        return MpmdMesh(mesh, self.mpmd_axis_name)

    def lowering_mesh(self) -> Mesh:
        """The mesh that stands for every submesh while a function is lowered: the first one."""
        return self.unstack[0]

    @cached_property
    def device_coords(self) -> Mapping[Any, tuple[int, ...]]:
        """The position of every device in the mesh."""
        return {device: position for position, device in np.ndenumerate(self.jax_mesh.devices)}

    @cached_property
    def device_mpmd_idx(self) -> Mapping[Any, int]:
        """The mpmd index of every device."""
        return {device: position[self.mpmd_axis] for device, position in self.device_coords.items()}

    @property
    def spmd_axis_names(self) -> tuple[str, ...]:
        """The axes other than the mpmd axis, in order."""
        return tuple(name for name in self.jax_mesh.axis_names if name != self.mpmd_axis_name)

    @property
    def devices_per_mesh(self) -> int:
        """The number of devices of one submesh."""
        return self.jax_mesh.devices.size // self.mpmd_dim
