"""The ground floor: what modules say, and what is known of their operations."""
