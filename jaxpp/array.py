"""The names of NVIDIA's module of arrays, `jaxpp.array`; `jaxpp.api` has these names too."""

from jaxpp.compatibility.array import MpmdArray, mpmd_to_spmd_reshard, spmd_to_mpmd_reshard
from jaxpp.lowering import MpmdSharding

__all__ = ["MpmdArray", "MpmdSharding", "mpmd_to_spmd_reshard", "spmd_to_mpmd_reshard"]
