"""Passes that make and merge the functions of the stages."""
