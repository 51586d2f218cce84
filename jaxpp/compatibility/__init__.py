"""Names of NVIDIA's JaxPP that only scripts written for it need (docs/jaxpp-compatibility.md)."""

import os

from jaxpp._compat import hide_frames

hide_frames(os.path.join(os.path.dirname(__file__), ""))  # operations made here stand at the user's line
