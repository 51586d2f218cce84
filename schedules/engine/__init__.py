"""The engine of schedules: cells as indices, and the one recurrence that runs them."""
