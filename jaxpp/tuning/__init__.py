"""Cuts and schedules by measured costs of layers: `schedule="auto"`, `jaxpp.tune` and `jaxpp.partition`."""
