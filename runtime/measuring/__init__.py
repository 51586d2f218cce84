"""What a program needs, and where its time goes."""
