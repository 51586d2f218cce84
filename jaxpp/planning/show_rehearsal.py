"""Shows rehearsals: one as text, several as a table that says if the pipeline pays."""

import math
import statistics
from collections.abc import Mapping, Sequence

from jaxpp.planning.conditions import HOUR
from jaxpp.planning.rehearsal import LostTime, RehearsedJob
from jaxpp.runtime.measuring.units import bytes_text, count_text, table, time_text

BILLION = 1e9

_EQUAL = 0.005
"""The share of a time by which two times differ that count as equal."""

_MEANINGS = (
    "Recompute counts as compute. With full overlap, the longest of products, memory accesses and collectives hides "
    "the others, at the planned speed of each mesh.",
    "Left out: input pipelines, storage, and the smaller number of processes while a job heals.",
)


def as_text(rehearsal: RehearsedJob) -> str:
    """Returns the rehearsal of one job as text."""
    conditions, first = rehearsal.conditions, rehearsal.first
    parts = ", ".join(f"{time_text(seconds)} {name}" for name, seconds in first.items())
    shares = ", ".join(f"{name} {share:.0%}" for name, share in _shares(rehearsal).items())
    low, high = _middle(rehearsal.steps)
    spread = f", {time_text(low)} to {time_text(high)} in 80% of {len(rehearsal.steps)} drawn steps"
    columns, rows = _losses(rehearsal)
    every = conditions.mtbf * HOUR / rehearsal.chips
    return "\n".join(
        [
            f"rehearsal on {rehearsal.chips:g} chips:",
            f"first results: after {time_text(sum(first.values()))} ({parts})",
            f"a step: {time_text(rehearsal.step)}{spread if len(rehearsal.steps) > 1 else ''}; "
            f"{time_text(rehearsal.overlapped_step)} with full overlap",
            f"bound by {rehearsal.bound_by}: {shares}",
            f"a failure: every {time_text(every)}" if conditions.mtbf < math.inf else "no failures: give mtbf=HOURS",
            *table(columns, rows),
            *_drawn(rehearsal),
            *_MEANINGS,
        ]
    )


def _drawn(rehearsal: RehearsedJob) -> list[str]:
    """Returns the line that explains the draws of failures; nothing if none are drawn."""
    jobs = [len(loss.drawn) for loss in rehearsal.losses.values() if loss.drawn]
    days = rehearsal.conditions.days
    return [f"Drawn: the mean, and 80% of {min(jobs)} jobs of {days:g} days."] if jobs else []


def _shares(rehearsal: RehearsedJob) -> dict[str, float]:
    """Returns the shares of the parts of a step without stragglers."""
    total = sum(rehearsal.parts.values())
    return {name: seconds / total for name, seconds in rehearsal.parts.items()}


def _middle(values: Sequence[float]) -> tuple[float, float]:
    """Returns the first and the last decile; a single value twice."""
    if len(values) < 2:
        return values[0], values[0]
    deciles = statistics.quantiles(values, n=10, method="inclusive")
    return deciles[0], deciles[-1]


def _losses(rehearsal: RehearsedJob) -> tuple[list[str], list[list[str]]]:
    columns = ["after a failure", "saves every", "a save", "a restart", "lost", "drawn", *_money(rehearsal)]
    rows = [[name, *_loss(loss), *_money(rehearsal, loss.expected)] for name, loss in rehearsal.losses.items()]
    return columns, rows


def _loss(loss: LostTime) -> list[str]:
    saves = loss.saves
    if saves.interval == math.inf:
        return ["-", "-", "-", f"{loss.expected:.1%}", "-"]
    low, high = _middle(loss.drawn) if loss.drawn else (0.0, 0.0)
    drawn = f"{statistics.fmean(loss.drawn):.1%} ({low:.1%} to {high:.1%})" if loss.drawn else "-"
    return [*map(time_text, (saves.interval, saves.save, saves.restart)), f"{loss.expected:.1%}", drawn]


def _money(rehearsal: RehearsedJob, loss: float | None = None) -> list[str]:
    """Returns the tokens of a day, its price and the price of a billion tokens; without a loss, their columns.

    What the conditions do not give is left out.
    """
    tokens, cost = rehearsal.tokens_per_day(loss or 0.0), rehearsal.cost_per_day
    found: dict[str, str] = {}
    if rehearsal.conditions.tokens:
        found["tokens a day"] = count_text(tokens)
    if rehearsal.conditions.price:
        found["cost a day"] = f"{cost:,.0f}"
    if rehearsal.conditions.tokens and rehearsal.conditions.price:
        found["cost of 10^9 tokens"] = f"{cost / tokens * BILLION:,.2f}" if tokens else "-"
    return list(found) if loss is None else list(found.values())


def compared(rehearsals: Mapping[str, RehearsedJob]) -> str:
    """Returns a table of rehearsals of one model on different meshes, the fastest first, and if the pipeline pays.

    Args:
        rehearsals: the rehearsals by the axes of their meshes.
    """
    ordered = dict(sorted(rehearsals.items(), key=lambda each: (not each[1].plan.fits, each[1].step)))
    first = next(iter(ordered.values()))
    columns = ["mesh", "step", "full overlap", *first.parts, "bound by", "utilisation", "peak", *_money(first)]
    rows: list[list[str]] = []
    for name, each in ordered.items():
        peak = bytes_text(max(each.plan.peak_bytes)) + ("" if each.plan.fits else ", DOES NOT FIT")
        shares = [f"{share:.0%}" for share in _shares(each).values()]
        times = [time_text(each.step), time_text(each.overlapped_step)]
        used = f"{each.plan.utilisation * each.plan.step_seconds / each.step:.1%}"
        rows.append([name, *times, *shares, each.bound_by, used, peak, *_money(each, each.loss)])
    return "\n".join([*table(columns, rows), *_verdict(ordered)])


def _verdict(ordered: Mapping[str, RehearsedJob]) -> list[str]:
    """Compares the fastest pipeline that fits with the fastest other mesh that fits."""
    fitting = {name: each for name, each in ordered.items() if each.plan.fits}
    pipeline = next((each for each in fitting.items() if len(each[1].plan.meshes) > 1), None)
    other = next((each for each in fitting.items() if len(each[1].plan.meshes) == 1), None)
    if not fitting:
        return ["nothing fits into the memory"]
    if pipeline is None or other is None:
        if len({len(each.plan.meshes) > 1 for each in ordered.values()}) == 1:
            return []
        what = "no pipeline" if pipeline is None else "no other mesh than one of a pipeline"
        return [f"{what} fits into the memory"]
    (name, one), (other_name, two) = pipeline, other
    low, high = two.overlapped_step / one.step, two.step / one.overlapped_step
    pays = "pays" if low > 1 + _EQUAL else "does not pay" if high < 1 + _EQUAL else "may pay: it depends on what hides"
    return [
        f"the pipeline {pays}",
        f"{name} is {two.step / one.step:.2f} times as fast as {other_name}, {low:.2f} times if only the latter "
        f"has full overlap, {high:.2f} times if only the former has",
    ]
