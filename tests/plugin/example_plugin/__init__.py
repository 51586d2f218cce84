"""A pass, a schedule and a transport in a package of their own (docs/your-first-pass.md)."""
