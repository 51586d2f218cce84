"""`Cluster`: Ray actors that hold the meshes, under the control of one driver."""

import itertools
import math
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np
from jax.sharding import Mesh

from jaxpp import _compat
from jaxpp.lowering import MpmdMesh
from jaxpp.lowering.lower import Lowered
from jaxpp.program import ProgramModule
from jaxpp.ray.executable import RemoteExecutable
from jaxpp.ray.pool import Pool
from jaxpp.runtime.execution.options import Options


class Cluster(Pool):
    """Ray actors that run the steps of this process, the driver. Each actor is a process with its own JAX client.

        with jaxpp.ray.Cluster(actors=4, devices=2) as cluster:
            mesh = cluster.mesh((4, 2), ("mpmd", "data"), "mpmd")
            step = jaxpp.mpmd_jit_with_loop(train_step, mesh)

    All other code is the same as in one process. The driver needs no devices. It traces the step, and ships each actor
    its part of the program once. A step is one call per actor. Its results are handles (`RemoteArray`), and the arrays
    stay on the actors.

    Args:
        actors: the number of actors.
        devices: the number of devices of each actor.
        platform: "cpu": each actor has as many virtual devices as it needs; "cuda": the GPUs that Ray gives it.
        address: the address of a running Ray cluster, as for `ray.init`: "auto" finds it. None: the Ray cluster that
            this process has joined, or one that is started on this machine and ends with the Cluster.
        options: options of each actor, as for Ray's `.options()`: resources, scheduling_strategy, runtime_env...
        watchdog: heartbeat timeout in seconds after which an actor counts as frozen. A step may take longer. If no
            actor moves for as long, the driver says who waits for whom.
        patience: seconds that the actors have to start.

    Raises:
        ImportError: Ray is too old.
        ConnectionError: there is no Ray cluster at `address`.
        ValueError: Ray lacks the resources, or an actor has other versions of jax, jaxlib or jaxpp.
        ActorError: an actor lacks devices, or dies while it starts.
    """

    def mesh(
        self,
        axis_shapes: Sequence[int],
        axis_names: Sequence[str],
        mpmd_axis_name: str,
        *,
        axis_types: Any = None,
    ) -> MpmdMesh:
        """Returns a mesh over the actors' devices. The first arguments are the same as of `jax.make_mesh`.

        The meshes along the mpmd axis are dealt out evenly, neighbours to the same actor. Each mesh is whole on one
        actor. The devices that the returned mesh shows are stand-ins: arrays put there by hand stay in the driver.

        Raises ValueError if the actors can't hold the mesh, or the names don't match the axes.
        """
        if len(axis_shapes) != len(axis_names) or mpmd_axis_name not in axis_names or min(axis_shapes) < 1:
            raise ValueError(
                f"a mesh of shape {tuple(axis_shapes)} with the axes {tuple(axis_names)}: expected one name per axis, "
                f"{mpmd_axis_name!r} among them, and sizes of at least 1"
            )
        axis = list(axis_names).index(mpmd_axis_name)
        shape = [*axis_shapes[:axis], 1, *axis_shapes[axis + 1 :]]
        return self.meshes([shape] * axis_shapes[axis], axis_names, mpmd_axis_name, axis_types=axis_types)

    def meshes(
        self,
        axis_shapes: Sequence[Sequence[int]],
        axis_names: Sequence[str],
        mpmd_axis_name: str = "mpmd",
        *,
        axis_types: Any = None,
    ) -> MpmdMesh:
        """Returns meshes of these shapes, which may differ, over the actors' devices: see `jaxpp.MpmdMesh.of`.

        Each mesh is whole on one actor, and neighbours share an actor. Raises ValueError if the actors can't hold them.
        """
        sizes = [math.prod(shape) for shape in axis_shapes]
        self.owners(sizes)
        devices = iter(_compat.cpu_devices(sum(sizes)))
        meshes = [
            Mesh(
                np.array(list(itertools.islice(devices, size))).reshape(shape), tuple(axis_names), axis_types=axis_types
            )
            for size, shape in zip(sizes, axis_shapes, strict=True)
        ]
        return MpmdMesh.of(meshes, mpmd_axis_name, self)

    def compile(self, lowered: Lowered, program: ProgramModule, compiler_options: Options | None) -> RemoteExecutable:
        """Compiles a program on the actors, for the protocol `jaxpp.backend.Backend`."""
        return RemoteExecutable(self, lowered, program.loaded, compiler_options)

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()
