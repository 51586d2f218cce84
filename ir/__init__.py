"""The bottom layer: reads, writes and checks modules, and knows the traits of their operations."""
