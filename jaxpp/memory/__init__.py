"""Choices that bring a program below a memory limit: recomputes, offloads, evictions, other orders."""
