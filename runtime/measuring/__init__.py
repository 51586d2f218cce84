"""The memory, FLOPs, bytes sent and time of a program."""
