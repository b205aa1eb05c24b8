"""How much memory a batch needs, and the largest that fits: a straight line, then trials.  No I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

#: The largest batch is known within 2 %; if the bound is a straight line, half of that is allowed for deviations from it.
WITHIN, STRAIGHT = 0.02, 0.01
MOST_FAILURES = 3


@dataclass(frozen=True)
class Trial:
    """The result of one process with a batch.  Bytes; `rate` is outputs per second with its bounds; `failure` is "" if it ran,
    "memory" if it ran out of memory, else what happened (never mistaken for memory)."""

    batch: int
    failure: str = ""
    allocated: int = 0
    reserved: int = 0
    limit: int = 0
    rate: float = 0.0
    rate_low: float = 0.0
    rate_high: float = 0.0
    latency_ns: float = 0.0  # at the requested percentile
    retries: int = 0

    @property
    def fits(self) -> bool:
        """Whether it ran."""
        return not self.failure


def predicted(trials: list[Trial], needed: Callable[[Trial], int]) -> float:
    """The largest batch by the line through the two largest batches that ran: need = a + c * batch.  Infinite if another item
    costs nothing, or if nothing is known."""
    ran = sorted((t for t in trials if t.fits and t.limit), key=lambda t: t.batch)
    if not ran:
        return float("inf")
    last = ran[-1]
    # the nearest point at most half as large: the allocator's rounding matters less
    before = next(
        (t for t in reversed(ran[:-1]) if t.batch <= last.batch / 2),
        ran[0] if len(ran) > 1 else None,
    )
    if before is None or before.batch == last.batch:
        return float("inf")
    slope = (needed(last) - needed(before)) / (last.batch - before.batch)
    if slope <= 0:
        return float("inf")
    return last.batch + (last.limit - needed(last)) / slope


def optimistic(trials: list[Trial]) -> float:
    """Estimated from what tensors need at once: no larger batch can fit."""
    return predicted(trials, lambda t: t.allocated)


def cautious(trials: list[Trial]) -> float:
    """Estimated from what the allocator took, including rounding and free blocks: this much does fit."""
    return predicted(trials, lambda t: t.reserved)


def largest(trials: list[Trial], run: Callable[[int], Trial], most: int | None) -> tuple[int, bool]:
    """(largest batch that ran, whether no larger one than 2 % more can run).  `run` makes a trial and `trials` grows by
    it.  At most three trials run out of memory."""
    failures = sum(t.failure == "memory" for t in trials)
    while True:
        good = max((t.batch for t in trials if t.fits), default=0)
        bad = min(
            (t.batch for t in trials if t.failure == "memory" and t.batch > good), default=None
        )
        bound = optimistic(trials)
        top = min(b for b in (bound, (bad - 1) if bad else float("inf"), most or float("inf")))
        if top == float("inf"):
            return good, False
        top = int(top)
        near = WITHIN if bad else STRAIGHT
        if not good or top <= good * (1 + near) or top <= good + (good < 1 / near):
            done = top <= good or good >= 1 / near or bool(bad and bad <= good + 1)
            if done or failures >= MOST_FAILURES:
                return good, done
        if failures >= MOST_FAILURES:
            return good, False
        safe = int(cautious(trials))
        if bad is None:
            following = top
        elif good < safe < top:
            following = safe
        else:
            following = (good + top + 1) // 2
        following = max(good + 1, min(following, top))
        if following <= good or any(t.batch == following for t in trials):
            return good, False
        trial = run(following)
        trials.append(trial)
        failures += trial.failure == "memory"
        if trial.failure and trial.failure != "memory":
            return good, False
