"""The command-line tools, and the generator of pages in docs/."""

import os

# As JAX sets it, but before jaxlib is loaded, which reads it once. It keeps XLA's notes on devices off stderr.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
