"""Command-line tools: `jaxpp-opt`, and the generator of docs/passes.md."""

import os

# As JAX does, but before jaxlib is loaded, which reads it once: keeps XLA's notes on devices off the tools' stderr.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
