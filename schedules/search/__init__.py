"""The search for schedules within a memory limit, and the comparison of all known schedules."""

from __future__ import annotations

from jaxpp.schedules.search.improve import improve
from jaxpp.schedules.search.made import make
from jaxpp.schedules.search.partition import Partition, partition
from jaxpp.schedules.search.search import Found, search
from jaxpp.schedules.search.tune import Ranked, Tuned, tune

__all__ = ["Found", "Partition", "Ranked", "Tuned", "improve", "make", "partition", "search", "tune"]
