"""Coverage of the intervals of `nsysalign measure`, and how often the same program twice is told apart, by more trials than
the tests have: python scripts/bench_measure_coverage.py 10000"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from measure.coverage import CASES, DIFFER, coverage, false_alarms

for case in CASES:
    for differ in DIFFER:
        parts = [
            coverage(case, differ, 1_000, seed) for seed in range(max(1, int(sys.argv[1]) // 1_000))
        ]
        held, width = (sum(values) / len(parts) for values in zip(*parts, strict=True))
        print(
            f"{case:20s} processes differ by {differ:4.0%}: {held:6.1%} hold the truth, half width {width:.2%}",
            flush=True,
        )
    for differ in (0.0, 0.002, 0.01):
        told = [
            false_alarms(case, differ, 1_000, seed)
            for seed in range(max(1, int(sys.argv[1]) // 1_000))
        ]
        print(
            f"{case:20s} processes differ by {differ:5.1%}: A against A told apart {sum(told) / len(told):.1%}",
            flush=True,
        )
