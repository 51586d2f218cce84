"""Saved steps: what `CompiledStep.save` writes, and `jaxpp.load` reads."""
