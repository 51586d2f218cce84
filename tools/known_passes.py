"""The passes that `jaxpp-opt` knows: those of jaxpp, of `--load-pass`, and the plug-ins of other packages."""

import inspect
from collections.abc import Iterator, Mapping, Sequence

from jaxpp._plugins import PlugIn, plug_ins
from jaxpp.hlo_passes import PASSES
from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.mlir_pass import MlirPass
from jaxpp.tools.pipeline_text import options_of

_GROUP = "jaxpp.passes"
"""The group of entry points that are classes of passes."""


class KnownPasses(Mapping[str, type[Pass]]):
    """The passes by name. A plug-in is imported when its class is asked for, which raises PlugInError if it fails."""

    def __init__(self, references: Sequence[str]) -> None:
        """Imports the passes of `--load-pass`. Raises PlugInError."""
        self._known = dict(PASSES)
        for reference in references:
            plug_in = PlugIn(reference, reference)
            step = _read(plug_in)
            if step.name in self._known:
                raise plug_in.error(f": the name '{step.name}' is taken")
            self._known[step.name] = step

    def __getitem__(self, name: str) -> type[Pass]:
        if name not in self._known:
            self._known[name] = _read(plug_ins(_GROUP, PASSES)[name])
        return self._known[name]

    def __contains__(self, name: object) -> bool:
        return name in self._known or name in plug_ins(_GROUP, PASSES)

    def __iter__(self) -> Iterator[str]:
        return iter({**self._known, **plug_ins(_GROUP, PASSES)})

    def __len__(self) -> int:
        return len(list(iter(self)))

    @property
    def shadowed(self) -> list[str]:
        """The errors of the plug-ins that have a name of jaxpp's."""
        return [str(each.taken("jaxpp")) for name, each in plug_ins(_GROUP, PASSES).items() if name in PASSES]


def _read(plug_in: PlugIn) -> type[Pass]:
    """Imports a plug-in. Raises PlugInError unless it is a pass of this name that a pipeline can have."""
    step = plug_in.load()
    if not isinstance(step, type) or not issubclass(step, Pass) or inspect.isabstract(step):
        raise plug_in.expected("a class of jaxpp.hlo_passes.Pass with a `run`", step)
    if plug_in.package and step.name != plug_in.name:
        raise plug_in.error(f": the pass {step.__name__} has the name '{step.name}'; give its entry point this name")
    try:
        options_of(step)
    except TypeError as error:
        raise plug_in.error(f": {error}") from None
    try:
        MlirPass(step.name)
    except ValueError:
        return step
    raise plug_in.error(f": the name '{step.name}' is taken by MLIR")
