"""One of the processes in which a seed runs that is of the family "processes".

It is forked from a process that has imported this file: what has started JAX can't be forked, so the rest comes later.
"""

import os

SEED = "JAXPP_FUZZ_SEED"


def run() -> list[str]:
    """Run two calls of a step; returns the kind of an error and its words, or nothing."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from fuzz import trial
    from fuzz.case import step_of
    from fuzz.features import make
    from fuzz.oracle import EXACT, Reference
    from jax.sharding import Mesh

    import jaxpp.api as jaxpp

    case = make(int(os.environ[SEED]))
    case.options.pop("in_shardings", None)
    case.mesh = "alone"
    devices = [jax.devices()[mesh] for mesh in range(case.plan.meshes)]
    mesh = jaxpp.MpmdMesh.of([Mesh(np.array([device]), "data") for device in devices])
    step, given = step_of(case)
    given = jax.tree.map(jnp.array, given)
    try:
        compiled = jaxpp.mpmd_jit_with_loop(step, mesh, compiler_options=EXACT, **case.options).lower(*given).compile()
        trial.compare(case, Reference(case, step, mesh), compiled, lambda state: state, given)
    except Exception as error:
        return [type(error).__name__, str(error)]
    return []
