"""What a program takes: memory, FLOPs, bytes sent, and time."""
