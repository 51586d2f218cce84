"""Runs steps on a cluster of Ray actors that one driver controls.

    with jaxpp.ray.Cluster(actors=4, devices=2) as cluster:
        mesh = cluster.mesh((4, 2), ("mpmd", "data"), "mpmd")
        step = jaxpp.mpmd_jit_with_loop(train_step, mesh)

Needs Ray: `pip install 'jaxpp[ray]'`. In this package `ray` is Ray's package, and `jaxpp.ray` is this one.
"""

try:
    import ray as _ray
except ModuleNotFoundError as error:
    message = "jaxpp.ray needs Ray: pip install 'jaxpp[ray]'"
    raise ModuleNotFoundError(message, name=error.name) from None

from jaxpp.ray.arrays import RemoteArray
from jaxpp.ray.calls import ActorError
from jaxpp.ray.cluster import Cluster
from jaxpp.ray.training import train

del _ray

__all__ = ["ActorError", "Cluster", "RemoteArray", "train"]
