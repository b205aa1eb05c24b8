"""The search for the best batch: a geometric grid, the largest that fits, then finer around the best.  No I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from nsysalign.measure import memory
from nsysalign.measure.memory import Trial

#: Batches whose throughput is this close to the best are its equals; the knee is the smallest that reaches this share of it.
EQUAL, KNEE = 0.01, 0.05
#: Neighbours of the best closer than this factor are not tried.
FINEST = 1.15
MOST_TRIALS = 24


@dataclass
class Search:
    """What is known so far.  `largest` is 0 if no batch ran; `exact`: no batch 2 % larger fits."""

    trials: list[Trial] = field(default_factory=list)
    largest: int = 0
    exact: bool = False
    limited: str = (
        ""  # what else ended the climb: --max-batch, a failure that is not memory, the budget
    )

    def at(self, batch: int) -> Trial | None:
        """The trial of a batch, None if there is none."""
        return next((t for t in self.trials if t.batch == batch), None)

    @property
    def ran(self) -> list[Trial]:
        """The trials that ran, in order of batch."""
        return sorted((t for t in self.trials if t.fits), key=lambda t: t.batch)

    @property
    def best(self) -> Trial | None:
        """The highest throughput."""
        return max(self.ran, key=lambda t: t.rate, default=None)

    @property
    def knee(self) -> Trial | None:
        """The smallest that gives nearly as much as the best."""
        best = self.best
        return next((t for t in self.ran if best and t.rate >= (1 - KNEE) * best.rate), None)

    def below(self, latency_ns: float) -> Trial | None:
        """The best throughput among those whose latency is below a limit."""
        return max(
            (t for t in self.ran if 0 < t.latency_ns <= latency_ns),
            key=lambda t: t.rate,
            default=None,
        )

    def reported(self, latency_ns: float | None, most: int) -> list[int]:
        """Batches to measure in full, in order: the first, the best, the knee, the largest, the best below the limit, and those
        that may be as good as the best; [] if none ran."""
        best = self.best
        if best is None:
            return []
        equal = [
            t
            for t in self.ran
            if t.rate_high >= best.rate and t.rate < best.rate and t.rate >= (1 - EQUAL) * best.rate
        ]
        below = self.below(latency_ns) if latency_ns else None
        wanted = [self.ran[0].batch, best.batch, self.knee.batch, self.largest]
        wanted += [below.batch] if below else []
        wanted += [t.batch for t in sorted(equal, key=lambda t: -t.rate)]
        return sorted(dict.fromkeys(wanted[:most]))


class OutOfTime(Exception):
    """The budget is too small for another trial."""


def search(
    run: Callable[[int], Trial], *, most: int | None = None, latency_ns: float | None = None,
    found: Search | None = None, sms: Callable[[], int] = lambda: 132,
) -> Search:  # fmt: skip
    """Look for the best.  `run(batch)` makes a trial, and may raise OutOfTime: what is known at that point is returned.
    `sms()`: how many multiprocessors the GPU has, known once a trial has run."""
    found = found if found is not None else Search()
    trial = run
    try:
        _climb(found, trial, most)
        if found.ran and not found.limited:
            found.largest, found.exact = memory.largest(found.trials, trial, most)
        if found.ran:
            _refine(found, trial)
            _waves(found, trial, sms())
            if latency_ns is not None:
                _boundary(found, trial, latency_ns)
    except OutOfTime:
        found.limited = "the time budget ran out before the search ended"
    found.largest = max((t.batch for t in found.ran), default=0)
    return found


def _climb(found: Search, trial: Callable[[int], Trial], most: int | None) -> None:
    """1, 2, 4, 16, 64, ... as long as the next one is expected to fit; what lies between is looked at around the best."""
    batch = 1
    while True:
        if most is not None and batch > most:
            if most not in [t.batch for t in found.trials]:
                found.trials.append(trial(most))
            found.limited = f"--max-batch {most}"
            return
        if batch > memory.optimistic(found.trials):
            return
        result = trial(batch)
        found.trials.append(result)
        if result.failure == "memory":
            return
        if result.failure:
            found.limited = result.failure
            return
        batch *= 2 if batch < 4 else 4
        if batch > 1 << 22:
            found.limited = f"memory does not limit the search: batch {result.batch:,} needs no more than smaller ones"
            return


def _refine(found: Search, trial: Callable[[int], Trial]) -> None:
    """Try batches between the best and its neighbours, until they are close or no better."""
    while len(found.trials) < MOST_TRIALS:
        ran = found.ran
        at = ran.index(found.best)
        gaps = [
            (upper.batch / lower.batch, lower, upper)
            for lower, upper in zip(
                ran[max(0, at - 1) : at + 2], ran[max(0, at - 1) + 1 : at + 2], strict=False
            )
        ]
        gaps = [
            g
            for g in gaps
            if g[0] > FINEST and g[2].batch - g[1].batch > 1 and not _flat(g, found.best)
        ]
        if not gaps:
            return
        _, lower, upper = max(gaps, key=lambda g: g[0])
        batch = _round((lower.batch * upper.batch) ** 0.5, lower.batch, upper.batch)
        result = trial(batch)
        found.trials.append(result)
        if result.failure and result.failure != "memory":
            return


def _waves(found: Search, trial: Callable[[int], Trial], sms: int) -> None:
    """Work comes in waves over the multiprocessors, and what fills the last wave is fastest: multiples of their number, its
    half and its quarter beside the best."""
    for unit in (sms, sms // 2, sms // 4):
        best = found.best.batch
        near = max(unit, round(best / unit) * unit) if unit else best
        if found.at(near) or not best / 2 <= near <= min(2 * best, max(t.batch for t in found.ran)):
            continue
        result = trial(near)
        found.trials.append(result)
        if result.failure and result.failure != "memory":
            return


def _flat(gap: tuple[float, Trial, Trial], best: Trial) -> bool:
    """Nothing to find between two that are both the best's equals, and already within a factor of 1.5."""
    return gap[0] < 1.5 and min(t.rate for t in gap[1:]) >= (1 - EQUAL / 2) * best.rate


def _round(value: float, low: int, high: int) -> int:
    """A batch strictly between two, if possible a multiple of 8 (else 4, 2), which suits tensor cores."""
    for step in (8, 4, 2, 1):
        near = round(value / step) * step
        if low < near < high:
            return near
    return (low + high) // 2


def _boundary(found: Search, trial: Callable[[int], Trial], latency_ns: float) -> None:
    """The largest batch below the latency limit lies between the last one below it and the first one above."""
    for _ in range(6):
        ran = found.ran
        below = [t for t in ran if t.latency_ns <= latency_ns]
        above = [
            t for t in ran if t.latency_ns > latency_ns and below and t.batch > below[-1].batch
        ]
        if (
            not below
            or not above
            or above[0].batch / below[-1].batch < FINEST
            or above[0].batch - below[-1].batch < 2
        ):
            return
        if len(found.trials) >= MOST_TRIALS + 6:
            return
        low, high = below[-1], above[0]
        share = (latency_ns - low.latency_ns) / max(
            high.latency_ns - low.latency_ns, 1.0
        )  # latency is about linear
        result = trial(_round(low.batch + share * (high.batch - low.batch), low.batch, high.batch))
        found.trials.append(result)
        if result.failure:
            return
