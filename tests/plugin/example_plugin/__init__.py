"""A pass and a schedule in a package of their own (docs/your-first-pass.md)."""
