"""Which readings of a host clock the program subtracts from one another.

    t0 = clock()        A            A  B  A  B          the source says that B subtracts what A stored
    work()                           [--)  [--)
    print(clock() - t0) B

    last = clock()      A            A  B  B  B          one site, whose reading becomes the next one's start
    while True:                      [--)
        now = clock()   B               [--)[--)
        dt, last = now - last, now

The call sites say what is subtracted from what (`clockuse`): a reading is paired with the latest
one on its thread, of the same clock, that was stored in the variable it subtracts.  Where the
source does not tell, nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

_DEEP = 64  # timers of one class that can be running at once


@dataclass(frozen=True)
class Site:
    """What the log says about a clock site (frames.CLOCK_SITES)."""

    site: str = ""
    callers: tuple[str, ...] = ()
    function: str = ""
    position: int = -1
    use: str = ""
    stores: tuple[str, ...] = ()
    subtracts: tuple[str, ...] = ()
    interleaved: bool = False


@dataclass(frozen=True)
class Candidates:
    """Possible intervals: `certain` pairs always count, the others only if work for the GPU was
    issued in between.

    Arrays of equal length, sorted by start and end: positions in the readings, and its `number`.  `again`: site -> how often it subtracted a start that it had
    subtracted before; `unclear`: how often several activations of a coroutine had a start that this
    site could have subtracted.
    """

    start: np.ndarray
    end: np.ndarray
    certain: np.ndarray
    number: np.ndarray
    again: Mapping[str, int] = field(default_factory=dict)
    unclear: Mapping[str, int] = field(default_factory=dict)

    def take(self, rows: np.ndarray) -> Candidates:
        """Some of the pairs."""
        arrays = ("start", "end", "certain", "number")
        return replace(self, **{name: getattr(self, name)[rows] for name in arrays})


def candidates(
    thread: np.ndarray, clock: np.ndarray, place: np.ndarray, sites: Sequence[Site]
) -> Candidates:
    """What the source and the order of the readings say, without the trace.

    thread, clock: integers; place: positions in `sites`; all in the order of each thread.
    """
    found: dict[tuple[int, int], bool] = {}  # certain
    again: dict[str, int] = {}
    unclear: dict[str, int] = {}
    groups = (
        pd.Series(np.arange(len(thread))).groupby([thread, clock], sort=True) if len(thread) else ()
    )
    for _, rows in groups:
        mine = rows.tolist()
        places = place[mine].tolist()
        # torch.utils.benchmark also times an empty loop, which only waits
        for pairs, certain in (
            (_loops(places, sites), False),
            (_told(places, sites, again, unclear), True),
        ):
            for i, j in pairs:  # a reading that two variables hold is still one start
                found[mine[i], mine[j]] = certain
    order = sorted(found)
    start, end = (np.array([key[k] for key in order], dtype=np.int64) for k in (0, 1))
    sure = np.array([found[key] for key in order], dtype=bool)
    return Candidates(start, end, sure, np.arange(len(order)), again, unclear)


def chosen(c: Candidates, holds_launch: Callable[[int, int], bool]) -> Candidates:
    """The candidates that really are intervals.  `holds_launch(i, j)`: whether work for the GPU was
    issued between readings i and j."""
    keep = c.certain.copy()
    for at in np.flatnonzero(~keep).tolist():
        keep[at] = holds_launch(int(c.start[at]), int(c.end[at]))
    return c.take(keep)


def _told(
    places: list[int], sites: Sequence[Site], again: dict[str, int], unclear: dict[str, int]
) -> Iterator[tuple[int, int]]:
    """Pairs that follow from the source.  A start may serve several differences (a lap and a
    total), each of them once."""
    held: dict[str, list[int]] = {}  # variable -> readings it was given, the latest last
    taken: dict[
        tuple, set[int]
    ] = {}  # (function, position, variable) -> starts already used in this difference
    mixed: set[int] = set()  # starts of coroutines that were open at the same time
    for i, n in enumerate(places):
        site = sites[n]
        for variable in site.subtracts:
            starts = held.get(variable)
            if not starts:
                continue
            if site.interleaved and not _is_attribute(variable):
                mixed.update(starts if len(starts) > 1 else ())
                at = starts.pop(0)
                if at in mixed:
                    unclear[site.site] = unclear.get(site.site, 0) + 1
                else:
                    yield at, i
                continue
            had = taken.setdefault((site.function, site.position, variable), set())
            latest = _latest(starts, had, variable, site, places, sites)
            if latest is None:
                again[site.site] = again.get(site.site, 0) + 1
                continue
            at = latest
            had.add(at)
            yield at, i
        for variable in site.stores:
            starts = held.setdefault(variable, [])
            starts.append(i)
            keep = _DEEP if _is_attribute(variable) or site.interleaved else 1
            del starts[:-keep]


def _latest(
    starts: list[int],
    had: set[int],
    variable: str,
    site: Site,
    places: list[int],
    sites: Sequence[Site],
) -> int | None:
    """The reading that a variable holds.  A name holds the latest one.  An attribute belongs to one
    of several objects, such as nested timers: if its latest reading has been subtracted here
    before, an older one counts if it was stored from another place in the same file: `with Timer():
    ... with Timer(): ...` ends inside out.
    """
    last = starts[-1]
    if last not in had:
        return last
    if not _is_attribute(variable):
        return None
    for at in reversed(starts):
        other = sites[places[at]]
        if at not in had:
            same_place = places[at] == places[last]
            return at if not same_place and _file(other.callers) == _file(site.callers) else None
        last = at
    return None


def _loops(places: list[int], sites: Sequence[Site]) -> Iterator[tuple[int, int]]:
    """Pairs of timeit's generated loop, which reads its clock twice in a row."""
    for i, (a, b) in enumerate(zip(places, places[1:])):  # noqa: B905, RUF007  one shorter by design
        first, second = sites[a], sites[b]
        if (
            first.use == second.use == "loop"
            and first.site == second.site
            and first.position < second.position
        ):
            yield i, i + 1


def _is_attribute(variable: str) -> bool:
    return variable.rpartition(":")[2].startswith(".")


def _file(callers: tuple[str, ...]) -> str:
    return callers[0].rpartition(":")[0] if callers else ""
