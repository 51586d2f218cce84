"""Interfaces that may change with any version: `jaxpp.experimental.mpmd`."""
