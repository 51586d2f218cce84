"""The share of a job's time that failures take: in closed form, and drawn.

A job saves its state from time to time. A failure costs the work since the last save, and a restart. This holds for a
training that starts again from a checkpoint, and for one that heals. Failures come at a constant rate, also during
saves and restarts.

- J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17 (9), 1974.
- J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22 (3), 2006.
"""

import math
from dataclasses import dataclass

import numpy as np

_MOST_FAILURES = 100_000
"""The most failures that are drawn in all jobs together."""


@dataclass(frozen=True)
class Saves:
    """The saves of a job's state. Times are in seconds.

    Attributes:
        interval: the time of work from one save to the next; infinite if nothing is saved.
        save: the time for which a save stops the work.
        restart: the time from a failure until the work goes on.
    """

    interval: float
    save: float
    restart: float

    def lost(self, mean: float) -> float:
        """Returns the expected share of time that is not work: saves, repeated work and restarts.

        This is Daly's complete model: from one save to the next a job needs M exp(R/M) (exp((t + S)/M) - 1). M is the
        mean time between failures, R the restart, t the interval, and S the save.

        Args:
            mean: the mean time between failures of the job.
        """
        if mean == math.inf:
            return 0.0 if self.interval == math.inf else self.save / (self.interval + self.save)
        exponents = self.restart / mean, (self.interval + self.save) / mean
        if sum(exponents) > 500:
            return 1.0
        return 1 - self.interval / (mean * math.exp(exponents[0]) * math.expm1(exponents[1]))

    def drawn(self, mean: float, seconds: float, jobs: int, seed: int) -> list[float]:
        """Returns the share of time that is not work in each of the drawn jobs.

        Jobs with too many failures are fewer, and shorter.

        Args:
            mean: the mean time between failures of the job, not infinite.
            seconds: the length of each job.
            jobs: the number of jobs.
            seed: the seed of the draws.
        """
        random = np.random.default_rng(seed)
        seconds = min(seconds, _MOST_FAILURES * mean)
        jobs = max(1, min(jobs, int(_MOST_FAILURES * mean / seconds)))
        return [1 - self._work(mean, seconds, random) / seconds for _ in range(jobs)]

    def _work(self, mean: float, seconds: float, random: np.random.Generator) -> float:
        """Draws a job, and returns the seconds of work that are not lost at its end."""
        now = worked = 0.0
        starts = False
        while True:
            failure = now + random.exponential(mean)
            begin = now + self.restart if starts else now
            if begin < min(failure, seconds):
                saved, rest = divmod(min(failure, seconds) - begin, self.interval + self.save)
                worked += saved * self.interval
                if failure >= seconds:
                    return worked + min(rest, self.interval)
            if failure >= seconds:
                return worked
            now, starts = failure, True


def best_interval(mean: float, save: float) -> float:
    """Returns Daly's interval, for which `Saves.lost` is nearly least.

    Args:
        mean: the mean time between failures of the job.
        save: the time for which a save stops the work.
    """
    if mean == math.inf:
        return math.inf
    if save >= 2 * mean:
        return mean
    ratio = save / (2 * mean)
    return math.sqrt(2 * save * mean) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save
