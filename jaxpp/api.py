"""The public names of jaxpp, under the name that NVIDIA's JaxPP gives them: `import jaxpp.api as jaxpp`.

Unlike `import jaxpp`, this import gives `jax.Array` the properties that scripts written for JaxPP read from results.
"""

from jaxpp.compatibility.properties import extend_arrays as _extend_arrays
from jaxpp.names import *  # noqa: F403

_extend_arrays()
