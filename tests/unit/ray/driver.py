"""A driver that trains until it is told to stop: `python -m unit.ray.driver`. Prints the processes of its actors."""

from typing import Any

from unit.ray import steps

import jaxpp

if __name__ == "__main__":
    with jaxpp.ray.Cluster(2) as cluster:
        step = jaxpp.mpmd_jit_with_loop(steps.train_step, cluster.mesh((2,), ("mpmd",), "mpmd"), donate_argnums=0)
        state: Any = steps.init(2)
        number = 0
        while True:
            state, loss = step(state, steps.batch(number))
            number += 1
            if number == 10:
                float(loss)
                print(*cluster.processes, flush=True)
