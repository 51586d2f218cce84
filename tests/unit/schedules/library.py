"""What each schedule of the library accepts, for the tests that go through all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

from jaxpp import schedules as S


@dataclass(frozen=True)
class Made:
    """A schedule and what it was made from."""

    schedule: S.Schedule
    meshes: int
    microbatches: int
    chunks: int
    options: dict[str, int] = field(default_factory=dict[str, int])


@st.composite
def schedules(draw: st.DrawFn, names: tuple[str, ...] = S.names(), meshes: int = 6, microbatches: int = 9) -> Made:
    """Any schedule of the library, with any numbers that it allows, up to about those given."""
    name = draw(st.sampled_from(names))
    return made(name, meshes, microbatches, lambda values: draw(st.sampled_from(values)))


def made(name: str, meshes: int, microbatches: int, pick: Callable[[Sequence[int]], int]) -> Made:
    """A schedule of the library, with numbers that it allows, up to about those given; `pick` chooses one."""
    p, m, v = pick(range(1, meshes + 1)), pick(range(1, microbatches + 1)), pick((1, 2, 3))
    options: dict[str, int] = {}
    chunks = 1
    if name in ("chimera", "bitpipe", "dualpipe"):
        p, m = 2 * -(-p // 2), 2 * -(-m // 2)
    if name in ("dualpipe", "dualpipe-v"):
        m += 2 * p
    if name in ("interleaved-1f1b", "kimi-k2", "interleaved-zb", "gis", "po-h", "po-f"):
        m = p * -(-m // p)
    if name in ("gpipe", "1f1b", "interleaved-1f1b", "kimi-k2", "looped-bfs", "interleaved-zb", "gis", "po-f"):
        chunks = options["chunks"] = v
    if name == "hanayo":
        chunks = options["chunks"] = 2 * v
    if name in ("zb-v", "stp", "v-half", "v-min", "dualpipe-v", "bitpipe"):
        chunks = 2
    if name == "po-h":
        chunks = options["chunks"] = v + 1
    if name in ("gis", "po-h", "po-f"):
        options["group"] = pick([g for g in range(-(-p // 2), p + 1) if m % g == 0])
    if name.startswith("vocab"):
        chunks = 3 if name == "vocab-v-half" else 2
    if name.startswith("seq1f1b") or name == "slimpipe":
        options["slices"] = v
    if name == "slimpipe":
        chunks = 3 * options.setdefault("layers", pick((1, 2))) + 1
    if name == "seq1f1b-i":
        chunks = options["chunks"] = pick((1, 2, 3))
    return Made(S.make(name, meshes=p, microbatches=m, **options), p, m, chunks, options)
