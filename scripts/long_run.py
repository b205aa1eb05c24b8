"""A long program with what makes a trace hard to cut: work that is queued hundreds of launches ahead, streams that wait for
each other, host timers, steps that synchronise and steps that do not.

    nsysalign run scripts/long_run.py --steps 60000        then: python scripts/compare_slices.py RUN_DIR

Every 2,000 steps it does the other thing.  60,000 steps make about a million launches.
"""

from __future__ import annotations

import argparse
import time

import torch

import nsysalign

KINDS = ("waits", "ahead", "streams", "timed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60_000)
    parser.add_argument("--launches", type=int, default=12)
    a = parser.parse_args()
    x, y = torch.ones(1 << 16, device="cuda"), torch.ones(1 << 20, device="cuda")
    side, done = torch.cuda.Stream(), torch.cuda.Event()
    pairs, host = [], 0.0
    for step in range(a.steps):
        kind = KINDS[step // 2_000 % len(KINDS)]
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin = time.perf_counter() if kind == "timed" else 0.0
        with nsysalign.region(kind):
            start.record()
            if kind == "streams":
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    y.add_(1.0)
                    done.record()
            for _ in range(a.launches):
                x.mul_(1.0)
            if kind == "streams":
                torch.cuda.current_stream().wait_event(done)
                x.add_(0.0)
            end.record()
        if kind == "waits" or step % 500 == 499:
            torch.cuda.synchronize()
        if kind == "timed":
            torch.cuda.synchronize()
            host += time.perf_counter() - begin
        pairs.append((kind, start, end))
    torch.cuda.synchronize()
    for kind in KINDS:
        mine = [start.elapsed_time(end) for k, start, end in pairs if k == kind]
        print(f"{kind:8} {len(mine):6} steps, mean {1e3 * sum(mine) / max(len(mine), 1):8.1f} us")
    print(f"timed by the host: {1e3 * host:.1f} ms")


if __name__ == "__main__":
    main()
