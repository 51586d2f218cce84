"""`counted-pair`, a transport in a package of its own."""

import math
from collections.abc import Sequence
from typing import Any

from jaxpp.ir.transports import Rules
from jaxpp.runtime.processes.collective import PairTransport
from jaxpp.runtime.processes.transport import ProcessTransfer


class CountedPair(PairTransport):
    """The transport `pair`, which counts the elements that this process sends.

    Attributes:
        rules: how its transfers wait for one another. The passes order the transfers by these rules.
        sent: the number of elements that this process has sent.
    """

    name = "counted-pair"
    rules = Rules(rendezvous=True)
    sent = 0

    def move(
        self, transfer: ProcessTransfer, arrays: Sequence[Any], sources: Sequence[Any], targets: Sequence[Any]
    ) -> Any:
        """Begins a transfer."""
        self.sent += sum(math.prod(array.shape) for array in arrays)
        return super().move(transfer, arrays, sources, targets)
