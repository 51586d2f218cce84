"""Passes on the microbatch loop while it is a loop."""
