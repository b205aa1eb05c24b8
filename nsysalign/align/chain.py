"""What neighbouring intervals say about each other.

    thread   end.record() start.record()         one behind the other on a busy stream: a fixed spacing apart
    chain    e0 .. e1 .. e2 .. e3                intervals that share a record

Each interval has a place and an uncertainty of its own; links between intervals tie their places together, so a chain
is placed as well as its best members.  A Gaussian graph: minimise sum (x - m)^2 / s^2 + sum (x_j - x_i - d)^2 / w^2,
solved by conjugate gradients over arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nsysalign.align.latency import Evidence, LatencyModel

#: Consecutive records behind a busy stream keep their distance this well, a shared record this well (ns).
_SPACING_NS = 90.0
_SHARED_NS = 150.0
_MARGIN_NS = 1_500
_ITERATIONS = 200


@dataclass(frozen=True)
class Links:
    """x[b] - x[a] = distance +- width, for intervals a and b."""

    a: np.ndarray
    b: np.ndarray
    distance: np.ndarray
    width: np.ndarray


def find_links(
    e: Evidence,
    model: LatencyModel,
    lane: np.ndarray,
    place: np.ndarray,
    start: np.ndarray,
    end: np.ndarray,
    elapsed: np.ndarray,
) -> Links:
    """Links between intervals (positions of their records in `start`, `end`); `place`: likely trace time per record."""
    count = len(start)
    record = np.concatenate([start, end])
    interval = np.concatenate([np.arange(count), np.arange(count)])
    offset = np.concatenate([np.zeros(count, np.int64), elapsed])
    # the first interval of each record owns it
    order = np.argsort(record, kind="stable")
    first = np.concatenate([[True], np.diff(record[order]) > 0]) if count else np.empty(0, bool)
    owner = np.full(len(lane), -1, dtype=np.int64)
    owner_offset = np.zeros(len(lane), dtype=np.int64)
    owner[record[order][first]] = interval[order][first]
    owner_offset[record[order][first]] = offset[order][first]
    again = order[~first]
    shared = (
        owner[record[again]],
        interval[again],
        owner_offset[record[again]] - offset[again],
        np.full(len(again), _SHARED_NS),
    )
    queued = _queued_behind(e, model, lane, place)
    queued = queued[:, (owner[queued[0]] >= 0) & (owner[queued[1]] >= 0)]
    one, two = queued
    spacing = np.full(len(one), round(model.value["spacing_ns"]), dtype=np.int64)
    spaced = (
        owner[one],
        owner[two],
        owner_offset[one] + spacing - owner_offset[two],
        np.full(len(one), _SPACING_NS),
    )
    a, b, distance, width = (np.concatenate([s, t]) for s, t in zip(shared, spaced, strict=True))
    different = a != b
    return Links(a[different], b[different], distance[different], width[different])


def _queued_behind(e: Evidence, model: LatencyModel, lane: np.ndarray, place: np.ndarray) -> np.ndarray:
    """Pairs of records of one stream with nothing between them, the second issued before the first was reached."""
    order = np.lexsort((e.call_start, lane))
    one, two = order[:-1], order[1:]
    ok = (lane[one] == lane[two]) & (lane[one] >= 0) & (e.behind[two] == e.behind[one] + 1) & ~e.waits[two]
    ok &= (e.call_end[two] + _MARGIN_NS < place[one]) & model.is_busy(e)[one]
    return np.stack([one[ok], two[ok]])


def settle(place: np.ndarray, sigma: np.ndarray, links: Links) -> tuple[np.ndarray, np.ndarray]:
    """New (place, sigma) of every interval.  A link that contradicts both its ends by four sigma is left out."""
    if not len(links.a):
        return place, sigma
    gap = (place[links.b] - place[links.a] - links.distance).astype(float)
    keep = np.abs(gap) < 4 * np.sqrt(sigma[links.a] ** 2 + sigma[links.b] ** 2 + links.width**2)
    a, b, gap, weight = links.a[keep], links.b[keep], gap[keep], 1 / links.width[keep] ** 2
    own = 1 / np.maximum(sigma, 20.0) ** 2

    def apply(v: np.ndarray) -> np.ndarray:
        flow = weight * (v[b] - v[a])
        return own * v + np.bincount(b, flow, len(v)) - np.bincount(a, flow, len(v))

    # unknown: the correction to each place, right-hand side from the links' gaps
    rhs = np.bincount(a, weight * gap, len(place)) - np.bincount(b, weight * gap, len(place))
    correction = _conjugate_gradients(apply, rhs)
    through = np.bincount(a, 1 / (sigma[b] ** 2 + 1 / weight), len(place)) + np.bincount(
        b, 1 / (sigma[a] ** 2 + 1 / weight), len(place)
    )
    # neighbours share part of their errors (the same kind of latency): never trust them more than this
    better = np.maximum(1 / np.sqrt(own + through), 0.75 * sigma)
    return place + np.rint(correction).astype(np.int64), better


def _conjugate_gradients(apply, rhs: np.ndarray) -> np.ndarray:
    x = np.zeros_like(rhs)
    r = rhs.copy()
    p = r.copy()
    rr = float(r @ r)
    for _ in range(_ITERATIONS):
        if rr < 1e-18:
            break
        q = apply(p)
        alpha = rr / float(p @ q)
        x += alpha * p
        r -= alpha * q
        rr, old = float(r @ r), rr
        p = r + (rr / old) * p
    return x
