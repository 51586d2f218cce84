"""Saves the state of a training, and restores it on other stages, meshes or processes, or into plain `jax.jit`.

    with jaxpp.checkpoint.Saver("checkpoints", keep=3) as saver, jaxpp.checkpoint.Preemption() as preemption:
        for step in range(first, steps):
            state, loss = train_step(state, batch)
            if preemption.reached(step) or step % 100 == 99:
                saver.save(step, state)
            ...
    state = jaxpp.checkpoint.restore("checkpoints", like=state)

The files are an ordinary orbax checkpoint (`ocp.CheckpointManager` reads it), one for all processes. Needs orbax:
`pip install 'jaxpp[checkpoint]'`.
"""

try:
    import orbax.checkpoint as _orbax
except ModuleNotFoundError as error:
    message = "jaxpp.checkpoint needs orbax-checkpoint: pip install 'jaxpp[checkpoint]'"
    raise ModuleNotFoundError(message, name=error.name) from None

from jaxpp.checkpoint.checksums import DamagedError
from jaxpp.checkpoint.handler import all_steps
from jaxpp.checkpoint.preemption import Preemption
from jaxpp.checkpoint.restoring import latest_step, restore
from jaxpp.checkpoint.saving import Saver, save

del _orbax

__all__ = ["DamagedError", "Preemption", "Saver", "all_steps", "latest_step", "restore", "save"]
