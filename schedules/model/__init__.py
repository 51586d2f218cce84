"""A schedule as data: tasks, placements, kinds, the grid, the graph of needs, the check, and the run of an order."""
