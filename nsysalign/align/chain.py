"""What intervals that share a record say about each other.

    chain    e0 .. e1 .. e2 .. e3

Each interval has a place and an uncertainty of its own; a link ties two places together, so a chain is placed as well as
its best members.  A Gaussian graph: minimise sum (x - m)^2 / s^2 + sum (x_j - x_i - d)^2 / w^2, by conjugate gradients.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

#: The places of a shared record agree this well (ns).
_SHARED_NS = 150.0
_ITERATIONS = 200


@dataclass(frozen=True)
class Links:
    """x[b] - x[a] = distance +- width, for intervals a and b."""

    a: np.ndarray
    b: np.ndarray
    distance: np.ndarray
    width: np.ndarray


def find_links(start: np.ndarray, end: np.ndarray, elapsed: np.ndarray, records: int) -> Links:
    """Links between intervals that share a record (positions of their records in `start`, `end`; `records`: how many there
    are)."""
    count = len(start)
    record = np.concatenate([start, end])
    interval = np.concatenate([np.arange(count), np.arange(count)])
    offset = np.concatenate([np.zeros(count, np.int64), elapsed])
    # the first interval of each record owns it
    order = np.argsort(record, kind="stable")
    first = np.concatenate([[True], np.diff(record[order]) > 0]) if count else np.empty(0, bool)
    owner = np.full(records, -1, dtype=np.int64)
    owner_offset = np.zeros(records, dtype=np.int64)
    owner[record[order][first]] = interval[order][first]
    owner_offset[record[order][first]] = offset[order][first]
    again = order[~first]
    a, b = owner[record[again]], interval[again]
    distance = owner_offset[record[again]] - offset[again]
    different = a != b
    return Links(a[different], b[different], distance[different], np.full(int(different.sum()), _SHARED_NS))


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
