"""Compares the numbers that papers publish of schedules, and of jobs, with ours.

    python benchmarks/published.py [PAPER ...]

Published, ours, the difference: one that is more than the published digits round away is marked, and the script fails.
Times are in the unit of the paper, or a forward takes 1; memory is in activations of a microbatch on a whole mesh.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from shared import parser

from jaxpp import schedules as S
from jaxpp.planning import Plan
from jaxpp.planning.failures import Saves, best_interval
from jaxpp.schedules.engine.report import Report

EQUAL: Final = S.Costs(1, 0.5, 0.5)
"""A backward takes as long as a forward: the times in the figures of Chimera, Hanayo and BitPipe."""


class Row(NamedTuple):
    """A published number, as it is printed or as its formula says, and ours, as the simulator says.

    Attributes:
        tolerance: the largest difference.
        at_most: whether less is as good: where the paper gives a bound, or what its search has found.
    """

    what: str
    published: float
    ours: float
    tolerance: float = 1e-9
    at_most: bool = False

    @property
    def holds(self) -> bool:
        """Whether ours is the published one."""
        difference = self.ours - self.published
        return difference <= self.tolerance and (self.at_most or -difference <= self.tolerance)


def run(name: str, meshes: int, microbatches: int, times: S.Costs | None = None, **options: Any) -> Report:
    """Simulates a schedule of the library."""
    return S.simulate(S.make(name, meshes=meshes, microbatches=microbatches, **options), times)


def peak(report: Report | S.Schedule, times: S.Costs | None = None) -> float:
    """Returns the largest peak of all meshes, in activations of a whole mesh."""
    return max((report if isinstance(report, Report) else S.simulate(report, times)).peak_activations())


ZERO_BUBBLE: Final = {
    # meshes, microbatches, chunks of 1F1B-I: F, B, W and hop in ms; rates of 1F1B, 1F1B-I, ZB-H1, ZB-H2, ZB-1p, ZB-2p
    (8, 24, 3): ((18.522, 18.086, 9.337, 0.601), (0.2431, 0.1055, 0.1585, 0.1083, 0.1585, 0.0433)),
    (8, 32, 3): ((18.513, 18.086, 9.331, 0.626), (0.1985, 0.0818, 0.1242, 0.0837, 0.1242, 0.0039)),
    (8, 64, 3): ((18.546, 18.097, 9.321, 0.762), (0.1240, 0.0443, 0.0674, 0.0444, 0.0674, 0.0026)),
    (8, 24, 4): ((29.718, 29.444, 19.927, 0.527), (0.2347, 0.0808, 0.1323, 0.0698, 0.1323, 0.0029)),
    (8, 32, 4): ((29.802, 29.428, 19.530, 0.577), (0.1898, 0.0628, 0.1045, 0.0559, 0.1045, 0.0022)),
    (8, 64, 4): ((29.935, 29.621, 19.388, 0.535), (0.1091, 0.0320, 0.0554, 0.0294, 0.0554, 0.0010)),
    (16, 48, 3): ((11.347, 11.248, 8.132, 0.377), (0.2552, 0.1104, 0.1397, 0.0672, 0.1397, 0.0066)),
    (16, 64, 3): ((11.307, 11.254, 8.101, 0.379), (0.2082, 0.0852, 0.1088, 0.0516, 0.1088, 0.0054)),
    (16, 128, 3): ((11.325, 11.308, 8.109, 0.378), (0.1251, 0.0445, 0.0576, 0.0266, 0.0576, 0.0028)),
    (32, 96, 2): ((10.419, 10.207, 7.715, 0.408), (0.2646, 0.1493, 0.1421, 0.0641, 0.1421, 0.0038)),
    (32, 128, 2): ((10.408, 10.204, 7.703, 0.408), (0.2168, 0.1164, 0.1106, 0.0490, 0.1106, 0.0029)),
    (32, 256, 2): ((10.402, 10.248, 7.698, 0.460), (0.1352, 0.0624, 0.0594, 0.0257, 0.0594, 0.0018)),
}
"""Its tables 5 and 9."""


ZERO_BUBBLE_V: Final = {
    # meshes, microbatches: rates of 1F1B, 1F1B-I (two chunks), ZB-H1, ZB-H2, ZB-V
    (16, 48): (0.2668, 0.1499, 0.1536, 0.0823, 0.0697),
    (16, 64): (0.2206, 0.1169, 0.1198, 0.0630, 0.0533),
    (16, 128): (0.1390, 0.0621, 0.0637, 0.0325, 0.0274),
    (24, 72): (0.2699, 0.1519, 0.1439, 0.0628, 0.0638),
    (24, 96): (0.2229, 0.1184, 0.1121, 0.0480, 0.0483),
    (24, 192): (0.1403, 0.0630, 0.0595, 0.0247, 0.0250),
    (32, 96): (0.2676, 0.1509, 0.1429, 0.0629, 0.0593),
    (32, 128): (0.2204, 0.1177, 0.1111, 0.0478, 0.0451),
    (32, 256): (0.1362, 0.0626, 0.0593, 0.0251, 0.0236),
}
"""Its table 8, whose times the paper does not print."""


def zero_bubble() -> Iterator[Row]:
    """Zero Bubble, arXiv 2401.10241, table 5: bubble rates; table 2: bubbles and peaks of the schedules by hand."""
    names = ("1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "zb-1p", "zb-2p")
    for (meshes, microbatches, chunks), (times, rates) in ZERO_BUBBLE.items():
        *kinds, hop = times
        costs = S.Costs(*kinds, hop=hop)
        for name, rate in zip(names, rates, strict=True):
            searched, chunked = name in ("zb-1p", "zb-2p"), name == "interleaved-1f1b"
            options: dict[str, Any] = {"costs": costs} if searched else {"chunks": chunks} if chunked else {}
            length = run(name, meshes, microbatches, costs, **options).longest_stage
            if chunked:
                # The paper counts p hops less: for p = v = m = 2 no order is as short as that.
                length -= meshes * hop
            ours = 1 - microbatches * sum(kinds) / length
            yield Row(f"{name} {meshes} x {microbatches}: bubble rate", rate, ours, 5e-5, at_most=searched)
    for p in (4, 8, 16):
        one, two = run("zb-h1", p, 3 * p), run("zb-h2", p, 3 * p)
        yield Row(f"zb-h1 p={p}: bubble, (p - 1)(F + B - W)", p - 1, one.makespan - 9 * p)
        yield Row(f"zb-h1 p={p}: peak, p", p, peak(one))
        yield Row(f"zb-h2 p={p}: bubble, (p - 1)(F + B - 2W)", 0, two.longest_stage - 9 * p)
        yield Row(f"zb-h2 p={p}: peak, 2p - 1", 2 * p - 1, peak(two))


def zero_bubble_v() -> Iterator[Row]:
    """Zero Bubble, table 8: bubble rates beside those of ZB-V, on times that the paper does not print.

    With F + B + W = 1 the rate of 1F1B tells the hop, and that of ZB-H1 then W; those of 1F1B-I and ZB-H2 follow, up to
    the rounding of the first two. The rate of ZB-V also depends on F / B, taken as 1: the automatic one of the paper
    was made for the times, ours for equal ones.
    """
    for (meshes, microbatches), rates in ZERO_BUBBLE_V.items():
        bubbles = [microbatches * rate / (1 - rate) for rate in rates]
        turns = meshes - 1
        hop = (bubbles[0] - turns) / (2 * turns + 2 * ((microbatches - 1) * turns // meshes))
        weight_grad = (1 - bubbles[2] / turns + 4 * hop) / 2
        half = (1 - weight_grad) / 2
        costs = S.Costs(half, half, weight_grad, hop=hop)
        for name, rate in zip(("1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "zb-v"), rates, strict=True):
            length = run(name, meshes, microbatches, costs).longest_stage
            if name == "interleaved-1f1b":
                length -= meshes * hop  # as in table 5
            tolerance = {"1f1b": 1e-9, "zb-h1": 1e-9, "zb-v": 2e-3}.get(name, 2e-4)
            what = f"{name} {meshes} x {microbatches}: bubble rate, table 8"
            yield Row(what, rate, 1 - microbatches / length, tolerance, at_most=name == "zb-v")


def controllable_memory() -> Iterator[Row]:
    """Controllable Memory, arXiv 2405.15362: bubbles, in stages of which a mesh has two, and peaks."""
    for p in (4, 6, 8, 9, 16):
        m = 3 * p
        half, least, zero = (run(name, p, m) for name in ("v-half", "v-min", "zb-v"))
        yield Row(f"v-half p={p}: bubble", 3 * p - (4 if p % 2 else 7), 2 * (half.makespan - 3 * m))
        yield Row(f"v-half p={p}: peak, half of 1F1B", (p + 2) // 2, peak(half))
        yield Row(f"v-min p={p}: bubble", 4 * p - (5 if p % 3 else 7), 2 * (least.makespan - 3 * m))
        yield Row(f"v-min p={p}: peak, a third of 1F1B", (p + 4) // 3, peak(least))
        yield Row(f"zb-v p={p}: bubble of the longest stage", 0, zero.longest_stage - 3 * m)
        yield Row(f"zb-v p={p}: peak, that of 1F1B", p, peak(zero))


def pipe_offload() -> Iterator[Row]:
    """PipeOffload, arXiv 2503.01328, table 1: bubbles and peaks in stages; copies leave the time as it is.

    Of its figures what captions, and summaries of the paper, say: of 2 (half of the peak of interleaved 1F1B with the
    first of two stages in the host), 9 (half of the stages moved save about three quarters), 10 (PO-F keeps about four
    layers, however many stages there are). Their axes, and the times and GiB that the paper measured, are left out.
    Copies that begin when the paper's open code begins them (there at once, back half a backward before they must be)
    give PO-H the same peaks as here.
    """
    copies = S.Costs(kinds={"offload": 1.0, "reload": 1.0})
    for p, v, g in ((4, 2, 2), (4, 2, 4), (8, 2, 4), (8, 4, 6)):
        m = g * 8
        plain = run("gis", p, m, chunks=v, group=g)
        bubble = 2 * (p - 1) + (p - g) * (v - 1)
        what = f"p={p}, v={v}, g={g}"
        yield Row(f"gis {what}: bubble, 2(p - 1) + (p - g)(v - 1)", bubble, v * (plain.makespan - 3 * m))
        yield Row(f"gis {what}: peak, g(v - 1) + p", g * (v - 1) + p, v * peak(plain))
        for name in ("po-h", "po-f"):
            moved = run(name, p, m, copies, chunks=v, group=g)
            yield Row(f"{name} {what}, k = 2/3: time of gis", plain.makespan, moved.makespan)
        # A mesh keeps what runs, what is on its way out, and what is on its way in.
        yield Row(f"po-f {what}: peak", 3, v * peak(moved), at_most=True)
    for p in (8, 16):
        whole = S.make("interleaved-1f1b", meshes=p, microbatches=4 * p, chunks=2)
        most, first = peak(whole), peak(S.offload(whole, *range(p)), copies)
        half = peak(run("po-h", p, 4 * p, copies))
        full = peak(S.offload(S.make("gis", meshes=p, microbatches=4 * p, group=p), k=2 / 3), copies)
        yield Row(f"interleaved-1f1b p={p}, first stages moved: half", most / 2, first, at_most=True)
        yield Row(f"po-h p={p}: about a quarter of interleaved-1f1b", most / 4, half, 0.25, at_most=True)
        yield Row(f"po-f p={p}, g=p, planned for k = 2/3: peak, 4", 4, 2 * full, at_most=True)
        slow = run("po-f", p, 4 * p, S.Costs(kinds={"offload": 1.5, "reload": 1.5}))
        yield Row(f"po-f p={p}, k = 1: peak, 4", 4, 2 * peak(slow), at_most=True)
        yield Row(f"po-f p={p}, k = 1: time of gis", run("gis", p, 4 * p).makespan, slow.makespan)


def interleaved() -> Iterator[Row]:
    """Interleaved 1F1B, arXiv 2104.04473; Breadth-First, 2211.05953; Kimi K2, 2507.20534: bubbles (p - 1)T/v."""
    for p, m, v in ((4, 8, 2), (8, 32, 2), (8, 32, 4)):
        for name, ahead in (("interleaved-1f1b", 1), ("kimi-k2", 2)):
            report = run(name, p, m, chunks=v)
            yield Row(f"{name} {p} x {m}, v={v}: bubble", (p - 1) * 3 / v, report.makespan - 3 * m)
            most = min(m * v, 2 * (p - 1) + (v - 1) * p + ahead)
            yield Row(f"{name} {p} x {m}, v={v}: peak, in stages", most, v * peak(report))
        report = run("looped-bfs", p, m, chunks=v)
        yield Row(f"looped-bfs {p} x {m}, v={v}: bubble", (p - 1) * 3 / v, report.makespan - 3 * m)


def dapple() -> Iterator[Row]:
    """GPipe, arXiv 1811.06965, and DAPPLE (1F1B), 2007.01045: the same bubble, (p - 1)T, and other peaks."""
    for p, m in ((4, 8), (8, 32)):
        for name, peaks in (("gpipe", [m] * p), ("1f1b", [p - i for i in range(p)])):
            report = run(name, p, m)
            yield Row(f"{name} {p} x {m}: bubble", 3 * (p - 1), report.makespan - 3 * m)
            for i in (0, p - 1):
                yield Row(f"{name} {p} x {m}: peak of mesh {i}", peaks[i], report.peak_activations()[i])


def dualpipe() -> Iterator[Row]:
    """DeepSeek-V3, arXiv 2412.19437, table 2: bubble (p/2 - 1)(F&B + B - 3W) and p + 1 activations."""
    for p, m, fused in ((4, 8, 1.0), (8, 20, 1.0), (8, 20, 0.75), (16, 40, 0.9)):
        report = run("dualpipe", p, m, S.Costs(1, 1, 0.5, fused=fused))
        idle = sum(bubble.length for bubble in report.bubbles if bubble.mesh == p // 2)
        bubble = (p // 2 - 1) * (fused * 2.5 + 1.5 - 1.5)
        yield Row(f"dualpipe {p} x {m}, F&B {fused:g} of F + B: idle in the middle", bubble, idle, 1e-6)
        yield Row(f"dualpipe {p} x {m}: peak", p + 1, peak(report))


def two_ways() -> Iterator[Row]:
    """Chimera, arXiv 2107.06925; Hanayo, 2308.15762; BitPipe, 2410.19367: D meshes, N microbatches."""
    for p in (4, 8, 16):
        for m in (p, 2 * p, 4 * p):
            yield Row(f"chimera {p} x {m}, b = F: 2N + D - 2", 2 * m + p - 2, run("chimera", p, m, EQUAL).makespan)
        yield Row(f"bitpipe {p} x {p}: 2N + (D - 2)/2", 2 * p + (p - 2) / 2, run("bitpipe", p, p, EQUAL).makespan)
        for v in (2, 4):
            hanayo = run("hanayo", p, p, EQUAL, chunks=v).makespan
            yield Row(f"hanayo {p} x {p}, v={v}: 2N + 2(D - 1)/v", 2 * p + (p - 1) * 2 / v, hanayo)
    doubled = run("chimera", 4, 8, doubling=True)
    yield Row("chimera 4 x 8, b = 2F, forward doubling", 27, doubled.makespan)
    yield Row("chimera 4 x 8, forward doubling: twice the peak", 8, peak(doubled), at_most=True)


def tables() -> Iterator[Row]:
    """Tabular Schedule Abstraction, arXiv 2605.24006: GPipe takes as long as 1F1B, Chimera is for few microbatches."""
    for p in (4, 8):
        for m in (p, 8 * p):
            one, all_first, two = (run(name, p, m).makespan for name in ("1f1b", "gpipe", "chimera"))
            yield Row(f"gpipe - 1f1b, {p} x {m}", 0, all_first - one)
            yield Row(f"chimera shorter than 1f1b, {p} x {m}", float(m == p), float(two < one))


def sequence() -> Iterator[Row]:
    """Seq1F1B, arXiv 2406.03488: n slices; the bubble is (p - 1)T/n, the peak (p - i - 1 + n)/n."""
    for p, m, n in ((4, 8, 2), (8, 16, 4)):
        report = run("seq1f1b", p, m, slices=n)
        yield Row(f"seq1f1b {p} x {m}, n={n}: bubble", (p - 1) * 3 / n, report.makespan - 3 * m)
        yield Row(f"seq1f1b {p} x {m}, n={n}: peak", (p - 1 + n) / n, peak(report))


def bpipe() -> Iterator[Row]:
    """BPipe (Kim et al., ICML 2023): the time of 1F1B, with ceil((p + 2)/2) activations on every mesh."""
    for p, m in ((4, 8), (8, 16), (16, 32)):
        report = run("bpipe", p, m)
        yield Row(f"bpipe {p} x {m}: time of 1F1B", 3 * (m + p - 1), report.makespan)
        yield Row(f"bpipe {p} x {m}: peak", -(-(p + 2) // 2), peak(report), at_most=True)


def vocabulary() -> Iterator[Row]:
    """Vocabulary Parallelism, arXiv 2411.05288, figure 10: activations of layers, with two barriers and with one."""
    for p, m in ((4, 16), (8, 32), (16, 64)):
        for ahead in (2, 1):
            layers = S.Costs(activation_bytes=[1.0] * p + [0.0] * (p + 1))  # then the shards, and what joins them
            most = max(run("vocab-1f1b", p, m, layers, ahead=ahead).peak_bytes())
            yield Row(f"vocab-1f1b {p} x {m}, ahead={ahead}: peak, p + {ahead}", p + ahead, most)


def step() -> Iterator[Row]:
    """Megatron-LM, arXiv 2104.04473, table 2: 141 TFLOP/s with PTD-P on 1,536 A100s, between the bounds of a plan.

    The FLOPs of a step are those of its formula (3). The plan was made by `pays.py`. Its FSDP is no ZeRO-3: its weights
    and gradients have four bytes (docs/rehearse.md).
    """
    sequences, tokens, layers, width, vocabulary, gpus = 1536, 2048, 96, 12288, 51200, 1536
    flops = 96 * sequences * tokens * layers * width**2
    flops *= 1 + tokens / (6 * width) + vocabulary / (16 * layers * width)
    seconds = flops / gpus / 141e12
    plan = Plan.load(Path(__file__).parent / "data" / "gpt3_pipeline.json")
    yield Row("GPT-3, 1,536 A100s: planned with full overlap, s", seconds, plan.hidden_seconds, at_most=True)
    yield Row("GPT-3, 1,536 A100s: at most as planned, s", plan.step_seconds, seconds, at_most=True)


def failures() -> Iterator[Row]:
    """Llama 3, arXiv 2407.21783: 419 unexpected failures in 54 days, and more than 90 % of effective time.

    Restarts of ten minutes and checkpoints of ten seconds are assumed.
    """
    mean = 54 * 86400 / 419
    lost = Saves(best_interval(mean, 10.0), 10.0, 600.0).lost(mean)
    yield Row("Llama 3 405B, 16,384 H100s: lost share of the time", 0.1, lost, at_most=True)


PAPERS: Final[dict[str, Callable[[], Iterator[Row]]]] = {
    "zero-bubble": zero_bubble,
    "zero-bubble-v": zero_bubble_v,
    "controllable-memory": controllable_memory,
    "pipe-offload": pipe_offload,
    "interleaved": interleaved,
    "dapple": dapple,
    "dualpipe": dualpipe,
    "two-ways": two_ways,
    "tables": tables,
    "sequence": sequence,
    "bpipe": bpipe,
    "vocabulary": vocabulary,
    "step": step,
    "failures": failures,
}


def main() -> int:
    """Prints the tables; returns 1 if anything differs."""
    flags, failures = parser(__doc__), 0
    flags.add_argument("papers", nargs="*", default=list(PAPERS), metavar="PAPER", help=", ".join(PAPERS))
    for name in flags.parse_args().papers:
        if name not in PAPERS:
            flags.error(f"no paper {name!r}; there are {', '.join(PAPERS)}")
        print((PAPERS[name].__doc__ or "").strip())
        for row in PAPERS[name]():
            mark = "" if row.holds else "  <- differs"
            print(f"  {row.what:62} {row.published:10.4f} {row.ours:10.4f} {row.ours - row.published:+9.4f}{mark}")
            failures += not row.holds
        print()
    print(f"{failures} of the numbers differ" if failures else "nothing differs")
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
