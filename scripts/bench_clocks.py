"""What sampling the GPU's clock costs, and how often the driver renews what it tells.  Needs an NVIDIA GPU.

python scripts/bench_clocks.py            the NVML calls of the sampler, called back to back for some seconds
python scripts/bench_clocks.py --perturb  event intervals and an allocation with the sampler and without, in turn
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from pathlib import Path

from nsysalign.record import clock_sampler as clocks

SECONDS = 3.0


def calls() -> None:
    """Microseconds per call, and the time between two changes of its answer."""
    import pynvml

    pynvml.nvmlInit()
    handles, order = clocks.visible(pynvml, {})
    print(f"{len(handles)} GPU(s), order {order}; {SECONDS:g} s each, microseconds")
    print(f"{'':16}{'p50':>9}{'p99':>9}{'max':>10}{'renewed every ms':>19}  answers")
    for name, read in clocks._readers(pynvml, handles[0]).items():
        took, seen, changed = [], [], []
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            began = time.perf_counter_ns()
            value = clocks._ask(read, handles[0])
            took.append(time.perf_counter_ns() - began)
            if not seen or value != seen[-1]:
                changed.append(began)
                seen.append(value)
        took.sort()
        gaps = [(b - a) / 1e6 for a, b in itertools.pairwise(changed)]
        renewed = f"{statistics.median(gaps):.1f}" if len(gaps) > 3 else "steady"
        p = [took[len(took) // 2], took[int(0.99 * len(took))], took[-1]]
        print(
            f"{name:16}{p[0] / 1e3:9.1f}{p[1] / 1e3:9.1f}{p[2] / 1e3:10.1f}{renewed:>19}  {sorted(set(seen), key=str)[:4]}"
        )
    pynvml.nvmlShutdown()


def perturb(rounds: int = 12) -> None:
    """Medians of four workloads with and without the sampler (a thread of another process, as in a run)."""
    import multiprocessing

    import torch

    small = torch.zeros(256, device="cuda")
    work = {
        "empty pair": lambda: None,
        "50 tiny launches": lambda: [small.add_(1) for _ in range(50)],
        "200 us kernel": lambda: torch.cuda._sleep(370_000),
        "cudaMalloc 64 MB": lambda: torch.cuda.caching_allocator_delete(
            torch.cuda.caching_allocator_alloc(64 << 20)
        ),
    }
    spawn = multiprocessing.get_context("spawn")
    found: dict[tuple[str, bool], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            sampled = number % 2 == 1
            stop = spawn.Event()
            sampler = spawn.Process(target=_sample, args=(Path(folder) / "clocks.jsonl", stop))
            if sampled:
                sampler.start()
                time.sleep(2.0)
            for name, do in work.items():
                found.setdefault((name, sampled), []).append(
                    statistics.median(_measured(do) for _ in range(300))
                )
                torch.cuda.empty_cache()
            if sampled:
                stop.set()
                sampler.join()
    print(f"{'us, median of medians':22}{'without':>10}{'sampled':>10}")
    for name in work:
        print(
            f"{name:22}"
            + "".join(f"{statistics.median(found[name, s]):10.2f}" for s in (False, True))
        )


def _sample(path: Path, stop) -> None:
    with clocks.sampling(path):
        stop.wait()


def _measured(do) -> float:
    import torch

    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    do()
    end.record()
    end.synchronize()
    return 1e3 * start.elapsed_time(end)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--perturb", action="store_true")
    perturb() if parser.parse_args().perturb else calls()
