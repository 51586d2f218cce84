"""One of the processes in which a seed runs that is of the family "processes".

It is forked from a process that has imported this file: what has started JAX can't be forked, so the rest comes later.
"""

import os

SEED = "JAXPP_FUZZ_SEED"


def run() -> list[str] | int:
    """Run some calls of a step; returns how many, or the kind of an error and its words."""
    import jax
    import jax.numpy as jnp
    from fuzz import trial
    from fuzz.case import mesh_over_processes, step_of
    from fuzz.features import make
    from fuzz.oracle import EXACT, Reference

    import jaxpp.api as jaxpp

    case = make(int(os.environ[SEED]))
    mesh = mesh_over_processes(case)
    case.mesh = "alone"  # plain `jax.jit` runs on a device of each process
    step, given = step_of(case)
    with jax.enable_x64(case.x64):
        given = jax.tree.map(jnp.array, given)
    try:
        with jax.enable_x64(case.x64):
            pipelined = jaxpp.mpmd_jit_with_loop(step, mesh, compiler_options=EXACT, **case.options)
            compiled = pipelined.lower(*given).compile()
            return trial.compare(case, Reference(case, step, mesh, pipelined), compiled, lambda state: state, given)
    except Exception as error:
        return [type(error).__name__, str(error)]
