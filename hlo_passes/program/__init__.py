"""Passes on the straight line: from one call per task to one sequence per mesh."""
