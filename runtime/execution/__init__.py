"""The program of the meshes, compiled and run."""
