"""Forms in which others write modules: the private names of JAX that read them."""

from typing import Any

from jaxpp._versions import explained


@explained
def exported_bytecode(data: bytes) -> bytes:
    """Returns the bytecode of the module in a file of `jax.export`. Damaged files raise any exception.

    `jax.export.deserialize` would also read the containers of the arguments. It knows only those that are registered
    in its process, and so would refuse a step whose state is of a class of the user.

    Raises:
        ModuleNotFoundError: the package flatbuffers is not installed.
    """
    import jax._src.export.serialization_generated as generated

    array_or_zero: Any = generated.Exported.GetRootAs(data).MlirModuleSerializedAsNumpy()
    return bytes(array_or_zero)
