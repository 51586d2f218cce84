"""The chips that a plan can be for, and meshes of devices that are not here."""
