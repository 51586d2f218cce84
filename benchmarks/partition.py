"""Shows how much shorter a step gets when its layers are cut by their costs: published models, in the simulator.

    python benchmarks/partition.py [--meshes 4 8 16] [--microbatches 32] [--seconds 10] [--model gemma-2b ...]

For each model: interleaved 1F1B on equally many layers per stage (the best of 2 and 4 stages per mesh; embedding and
head go with the first and the last layer), and what `S.partition` finds with 1 and with 2 stages per mesh. Layers take
time in proportion to their FLOPs, for sequences of 4,096 tokens, with the dimensions that the models' authors publish:

- Gemma (arXiv 2403.08295, table 1), Gemma 2 (arXiv 2408.00118, table 1), Gemma 3 (arXiv 2503.19786 and its
  config.json): vocabularies of 256k and 262k tokens, so the head weighs as much as many layers;
- DeepSeek-V2-Lite (arXiv 2405.04434, appendix B), DeepSeek-V3 (arXiv 2412.19437, section 4.2): multi-head latent
  attention, dense layers first, then mixtures of experts; V3 predicts a second token with a layer and a head more;
- Nemotron-H-8B (arXiv 2504.03624, table 1 and figure 2): Mamba-2, MLP and attention layers.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Final, NamedTuple

from shared import parser, show
from tqdm import tqdm

from jaxpp import schedules as S
from jaxpp.schedules.search import Partition
from jaxpp.schedules.search.cuts import even_cuts

TOKENS: Final = 4096


class Layer(NamedTuple):
    """FLOPs of a layer's forward for one token: in products with weights, whose two gradients take as many each.

    core: in products without weights (attention, state space), whose gradient takes twice as many.
    """

    weights: float
    core: float = 0.0


@dataclass(frozen=True)
class Model:
    """A row of layers: `layers` between the embedding and the head, and `ends`, the head and what follows it."""

    layers: tuple[Layer, ...]
    ends: tuple[Layer, ...]

    @property
    def row(self) -> tuple[Layer, ...]:
        """All of them; the lookup of an embedding takes next to nothing."""
        return (Layer(1.0), *self.layers, *self.ends)

    @property
    def costs(self) -> S.Costs:
        """The costs of each layer, for one sequence, in GFLOP."""
        scale = TOKENS / 1e9
        return S.Costs(
            forward=[scale * (each.weights + each.core) for each in self.row],
            input_grad=[scale * (each.weights + 2 * each.core) for each in self.row],
            weight_grad=[scale * each.weights for each in self.row],
        )

    def equal(self, stages: int) -> tuple[int, ...]:
        """Returns equally many layers per stage; the embedding and the ends go with the first and the last."""
        first, *cuts = even_cuts(len(self.layers), stages)
        return (first + 1, *cuts[:-1], cuts[-1] + len(self.ends))


def attention(hidden: int, heads: int, kv_heads: int, size: int) -> Layer:
    """Counts grouped-query attention: projections, and causal scores over half of the tokens on average."""
    return Layer(2 * hidden * size * (2 * heads + 2 * kv_heads), 2 * 2 * heads * size * TOKENS / 2)


def latent_attention(hidden: int, heads: int, query: int) -> Layer:
    """Counts DeepSeek's attention on 512 latents; each head has 128 + 64 (rotary) for scores, 128 for values."""
    of_query = hidden * query + query * heads * 192 if query else hidden * heads * 192
    weights = of_query + hidden * (512 + 64) + 512 * heads * 256 + heads * 128 * hidden
    return Layer(2 * weights, 2 * heads * (192 + 128) * TOKENS / 2)


def mlp(hidden: int, inner: int, *, gated: bool = True) -> Layer:
    """Counts two products with weights, or three where it is gated."""
    return Layer(2 * hidden * inner * (3 if gated else 2))


def mamba(hidden: int, heads: int, size: int, state: int, groups: int) -> Layer:
    """Counts Mamba-2: projections in and out; state updates and outputs of each head."""
    inner = heads * size
    return Layer(2 * hidden * (2 * inner + 2 * groups * state + heads) + 2 * inner * hidden, 6 * inner * state)


def head(hidden: int, vocabulary: int) -> Layer:
    """Counts the logits."""
    return Layer(2 * hidden * vocabulary)


def both(*parts: Layer) -> Layer:
    """Joins several parts to one layer."""
    return Layer(sum(part.weights for part in parts), sum(part.core for part in parts))


def gemma(count: int, hidden: int, inner: int, heads: int, kv_heads: int, size: int, vocabulary: int) -> Model:
    """Returns equal layers, and a large vocabulary."""
    layer = both(attention(hidden, heads, kv_heads, size), mlp(hidden, inner))
    return Model((layer,) * count, (head(hidden, vocabulary),))


def deepseek_v2_lite() -> Model:
    """Returns 27 layers, the first one dense; 6 routed and 2 shared experts of 1,408."""
    each = latent_attention(2048, 16, 0)
    experts = both(each, mlp(2048, 8 * 1408), Layer(2 * 2048 * 64))
    return Model((both(each, mlp(2048, 10944)), *[experts] * 26), (head(2048, 102400),))


def deepseek_v3() -> Model:
    """Returns 61 layers, the first three dense; 8 routed and 1 shared expert of 2,048; a second token predicted."""
    each = latent_attention(7168, 128, 1536)
    experts = both(each, mlp(7168, 9 * 2048), Layer(2 * 7168 * 256))
    second = both(Layer(2 * 2 * 7168 * 7168), experts)
    logits = head(7168, 129280)
    return Model((*[both(each, mlp(7168, 18432))] * 3, *[experts] * 58), (logits, second, logits))


def nemotron_h_8b() -> Model:
    """Returns 52 layers: 24 of Mamba-2, 24 MLPs, 4 of attention."""
    mixers = {"M": mamba(4096, 128, 64, 128, 8), "*": attention(4096, 32, 8, 128)}
    kinds = {**mixers, "-": mlp(4096, 21504, gated=False)}
    pattern = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"
    return Model(tuple(kinds[kind] for kind in pattern), (head(4096, 131072),))


MODELS: Final[dict[str, Callable[[], Model]]] = {
    "gemma-2b": lambda: gemma(18, 2048, 16384, 8, 1, 256, 256128),
    "gemma-7b": lambda: gemma(28, 3072, 24576, 16, 16, 256, 256128),
    "gemma-2-2b": lambda: gemma(26, 2304, 9216, 8, 4, 256, 256128),
    "gemma-2-9b": lambda: gemma(42, 3584, 14336, 16, 8, 256, 256128),
    "gemma-3-1b": lambda: gemma(26, 1152, 6912, 4, 1, 256, 262144),
    "deepseek-v2-lite": deepseek_v2_lite,
    "deepseek-v3": deepseek_v3,
    "nemotron-h-8b": nemotron_h_8b,
}


class Row(NamedTuple):
    """One model on so many meshes: makespans in GFLOP, as if each mesh did 1 GFLOP in a unit of time."""

    interleaved: float
    found: Partition

    @property
    def gain(self) -> float:
        """How many times as fast."""
        return self.interleaved / self.found.value


def measured(name: str, meshes: int, microbatches: int, seconds: float) -> Row:
    """Measures interleaved 1F1B on equal cuts, and the best partition."""
    model = MODELS[name]()
    costs, times = model.costs, list[float]()
    for chunks in (2, 4):
        if meshes * chunks <= len(model.layers):
            plan = S.make("interleaved-1f1b", meshes=meshes, microbatches=microbatches, chunks=chunks)
            times.append(S.simulate(plan, costs.cut(model.equal(plan.stages))).makespan)
    found = (S.partition(costs, meshes, microbatches, chunks=chunks, seconds=seconds / 2) for chunks in (1, 2))
    return Row(min(times), min(found, key=lambda each: each.value))


def main() -> None:
    """Prints the table and its mean."""
    flags = parser(__doc__, microbatches=32)
    flags.add_argument("--model", nargs="*", choices=MODELS, default=list(MODELS))
    flags.add_argument("--meshes", nargs="*", type=int, default=[4, 8, 16])
    flags.add_argument("--seconds", type=float, default=4.0, help="counted work for each row")
    options = flags.parse_args()
    # Interleaved 1F1B needs a layer for each of two stages per mesh.
    pairs = product(options.model, options.meshes)
    cases = [(name, meshes) for name, meshes in pairs if len(MODELS[name]().layers) >= 2 * meshes]
    rows = {case: measured(*case, options.microbatches, options.seconds) for case in tqdm(cases)}
    lines = [
        (*case, f"{row.interleaved:.0f}", f"{row.found.value:.0f}", f"{row.found.gap:.1%}", f"{row.gain:.2f}")
        for case, row in rows.items()
    ]
    show(("model", "meshes", "interleaved 1F1B, equal cuts", "partition", "gap", "times as fast"), lines)
    print(f"\nmean: {statistics.fmean(row.gain for row in rows.values()):.3f} times as fast")


if __name__ == "__main__":
    main()
