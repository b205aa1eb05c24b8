"""The SM clock during a measurement: heavy GEMMs and pauses in turn, the same linear timed
throughout.

    nsysalign run scripts/puzzles/clocks.py

What to see: the clock rises from idle in the first runs (label `linear`), and under the heavy load
the power cap pulls it down (label `loaded`), if this GPU has one that bites.
"""

# expects: throttled
import time

import torch

SMALL, LARGE, ROUNDS, PAUSE_S, LOAD_S = 1024, 8192, 4, 0.5, 1.5


def timed(work):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(200_000)  # the host runs ahead: what is measured is the GPU
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def main():
    x = torch.randn(SMALL, SMALL, device="cuda", dtype=torch.float16)
    a = torch.randn(LARGE, LARGE, device="cuda", dtype=torch.bfloat16)
    for _ in range(3):
        x @ x
        a @ a
    torch.cuda.synchronize()
    for _ in range(ROUNDS):
        time.sleep(PAUSE_S)
        idle = [
            timed(lambda: x @ x) for _ in range(40)
        ]  # the first ones find a GPU that has been idle
        until, loaded = time.monotonic() + LOAD_S, []
        while time.monotonic() < until:
            loaded.append(timed(lambda: a @ a))
        after = [timed(lambda: x @ x) for _ in range(40)]
        print(
            f"after a pause {min(idle):.4f} ms, loaded {min(loaded):.3f}..{max(loaded):.3f} ms, then {min(after):.4f} ms"
        )


if __name__ == "__main__":
    main()
