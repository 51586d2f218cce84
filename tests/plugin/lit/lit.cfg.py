"""Stock lit: `lit lit`, in the environment in which jaxpp and this package are installed."""

import os
import sys

import lit.formats

config.name = "example-plugin"
config.suffixes = [".mlir"]
config.test_format = lit.formats.ShTest()
config.environment["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), config.environment["PATH"]])
config.environment["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
