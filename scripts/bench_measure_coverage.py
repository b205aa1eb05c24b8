"""Coverage of the intervals of `nsysalign measure`, more trials than the test has: python scripts/bench_measure_coverage.py 10000"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from measure.coverage import CASES, DIFFER, coverage

for case in CASES:
    for differ in DIFFER:
        parts = [coverage(case, differ, 1_000, seed) for seed in range(max(1, int(sys.argv[1]) // 1_000))]
        held, width = (sum(values) / len(parts) for values in zip(*parts, strict=True))
        print(
            f"{case:20s} processes differ by {differ:4.0%}: {held:6.1%} hold the truth, half width {width:.2%}",
            flush=True,
        )
