"""Checks this installation and this host: `python -m jaxpp doctor` (docs/doctor.md)."""

from jaxpp.doctor.checks import examine as examine
from jaxpp.doctor.finding import Finding as Finding
