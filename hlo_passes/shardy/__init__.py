"""Passes from and to modules of Shardy's `mpmd` dialect (docs/shardy-mpmd.md)."""
