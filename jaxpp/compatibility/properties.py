"""The properties that scripts written for NVIDIA's JaxPP read from a step's results, for plain `jax.Array`s."""

from jaxpp._compat import add_array_property


def extend_arrays() -> None:
    """Gives `jax.Array` the properties of an MpmdArray that is on a single mesh."""
    add_array_property("to_mpmd_local_array", lambda array: array if array.addressable_shards else None)
    add_array_property("first_mpmd_replica", lambda array: array if array.addressable_shards else None)
    add_array_property("is_partially_addressable", lambda array: bool(array.addressable_shards))
