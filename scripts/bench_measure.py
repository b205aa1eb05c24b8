"""The same 12 calls by `nsysalign measure`'s modes and by others' tools, in random order, on one GPU.

    python scripts/bench_measure.py OUT.json [--seconds 60] [--nvbench]

Tools: our modes (device with a warm and a cold L2, event, latency), NVIDIA's cuda-bench (nvbench; `--nvbench`, a process of
its own, cold L2), triton's do_bench (mean and median; flushes the L2), torch.utils.benchmark (blocked_autorange, the host's
clock), and the loop of a well-known article (10 calls to warm up, 300 event pairs, a synchronisation each; mean).
The three spin kernels read the GPU's own globaltimer and store how long they took: that is the truth beside them.
Every result is written as soon as it is there.  `--table OUT.json` prints the table again.

    python scripts/bench_measure.py OUT.json --in-turns [--seconds 60]

Mode `event` and the article's loop in short turns, in random order in each pair: a host whose speed changes from second to
second changes for both.  Median of the pairs' differences with its 95 % interval, and whether it is within 1 % or 1 us.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median
from typing import Any

SPIN = r"""
extern "C" __global__ void spin(unsigned long long ns, unsigned long long* took) {
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do { asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); } while (now - begin < ns);
  took[0] = now - begin;
}
"""


def spin(us: int) -> tuple[Callable[[], None], Callable[[], float]]:
    """(a call that spins so long, a function that tells how long the last one took by the GPU's own timer)."""
    import cupy
    import torch

    warnings.simplefilter(
        "ignore", DeprecationWarning
    )  # cupy's ExternalStream, in versions that have its successor
    kernel = cupy.RawKernel(SPIN, "spin")
    took = torch.zeros(1, dtype=torch.int64, device="cuda")
    pointer = took.data_ptr()

    def call() -> None:
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            kernel((1,), (1,), (cupy.uint64(us * 1000), cupy.uint64(pointer)))

    return call, lambda: float(took.item())


def workloads() -> dict[str, Callable[[], Any]]:
    """Twelve calls: one kernel or few, 5 us to 2 ms; none waits for the GPU."""
    import torch
    import torch.nn.functional as f

    torch.manual_seed(0)
    half = {"device": "cuda", "dtype": torch.float16}
    a, b = torch.randn(4096, 4096, **half), torch.randn(4096, 4096, **half)
    c, d = torch.randn(1024, 1024, device="cuda"), torch.randn(1024, 1024, device="cuda")
    small, large = torch.randn(1 << 20, device="cuda"), torch.randn(1 << 26, device="cuda")
    rows, image = torch.randn(8192, 8192, **half), torch.randn(32, 64, 56, 56, **half)
    filters, one, weights = (
        torch.randn(64, 64, 3, 3, **half),
        torch.randn(1, 4096, **half),
        torch.randn(16384, 4096, **half),
    )
    small_out, large_out = torch.empty_like(small), torch.empty_like(large)
    return {
        "spin 20 us": spin(20)[0],
        "spin 200 us": spin(200)[0],
        "spin 2000 us": spin(2000)[0],
        "add 4 MB": lambda: torch.add(small, 1.0, out=small_out),
        "add 256 MB": lambda: torch.add(large, 1.0, out=large_out),
        "matmul 4096 half": lambda: torch.mm(a, b),
        "matmul 1024 float": lambda: torch.mm(c, d),
        "softmax 8192": lambda: torch.softmax(rows, 1),
        "layer norm 8192": lambda: f.layer_norm(rows, (8192,)),
        "convolution 3x3": lambda: f.conv2d(image, filters, padding=1),
        "linear, batch 1": lambda: f.linear(one, weights),
        "sum 256 MB": lambda: large.sum(),
    }


def ours(call: Callable[[], Any], seconds: float) -> dict[str, float]:
    """Our modes, by the worker's own loop, in this process."""
    from nsysalign.measure.cuda import Cuda
    from nsysalign.measure.worker import Worker

    facts: list[dict[str, Any]] = []
    spec = {
        "target": "", "batch": None, "modes": ["device", "event", "latency", "steady"], "l2": ["warm", "cold"], "precision": 0.002,
        "seconds": seconds, "need": 50, "most_s": 1.0, "least_s": 0.1, "warm_up_s": 1.0, "window_s": 0.15, "seed": random.randrange(1 << 30),
    }  # fmt: skip
    if not Worker(spec, facts.append, Cuda()).run(lambda: call):
        return {"failed: " + facts[-1]["message"]: float("nan")}
    out: dict[str, float] = {}
    for mode in spec["modes"]:
        for l2 in spec["l2"]:
            values = [
                v
                for x in facts
                if x["type"] == "block" and (x["mode"], x["l2"]) == (mode, l2)
                for v in x["ns"]
            ]
            if values:
                out[f"{mode} {l2}"] = median(values) / 1e3
    floor = next(
        (x["empty_kernel_ns"] for x in facts if x["type"] == "mode" and "empty_kernel_ns" in x), 0
    )
    return out | {"empty kernel": floor / 1e3}


def article(call: Callable[[], Any]) -> dict[str, float]:
    """The loop that everybody writes again."""
    import torch

    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for _ in range(10):
        call()
    times = []
    for _ in range(300):
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return {"article mean": mean(times), "article median": median(times)}


def in_turns(call: Callable[[], Any], seconds: float) -> dict[str, Any]:
    """Mode `event` and the article's loop, block against block."""
    import torch

    from nsysalign.measure.cuda import Cuda
    from nsysalign.measure.modes import Modes
    from nsysalign.measure.target import Workload

    gpu, start, end = Cuda(), *(torch.cuda.Event(enable_timing=True) for _ in range(2))

    def loop(count: int) -> list[float]:
        call()
        times = []
        for _ in range(count):
            start.record()
            call()
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end) * 1e6)
        return times

    mode = Modes(gpu, Workload(call), 1e5).make("event", "warm")
    blocks = {"event": mode.block, "article": loop}
    for _ in range(10):
        call()
    pairs: list[dict[str, float]] = []
    began = time.monotonic()
    while time.monotonic() - began < seconds or len(pairs) < 12:
        order = random.sample(list(blocks), 2)
        pairs.append({name: median(blocks[name](20)) / 1e3 for name in order})
    return paired(pairs)


def paired(pairs: list[dict[str, float]]) -> dict[str, Any]:
    """The median difference of pairs of block medians, us, with the order statistics that hold it in 95 of 100; `holds` is
    None where the interval lies neither within the bar nor outside of it."""
    differences = sorted(p["event"] - p["article"] for p in pairs)
    usual = median(p["article"] for p in pairs)
    bar = max(0.01 * usual, 1.0)
    outside = max(0, int((len(pairs) - 1.96 * len(pairs) ** 0.5) / 2))
    low, high = differences[outside], differences[-1 - outside]
    holds = True if -bar <= low and high <= bar else False if high < -bar or low > bar else None
    return {
        "event": median(p["event"] for p in pairs), "article": usual, "difference": median(differences),
        "low": low, "high": high, "bar": bar, "pairs": len(pairs), "holds": holds,
    }  # fmt: skip


def all_in_turns(out: Path, seconds: float) -> None:
    """Every call, one line each as it comes."""
    calls = workloads()
    found: dict[str, Any] = {}
    for name in random.sample(list(calls), len(calls)):
        try:
            found[name] = in_turns(calls[name], 0.8 * seconds / len(calls))
        except Exception as error:
            found[name] = {"failed": str(error)}
        out.write_text(json.dumps(found, indent=1))
        print(name, json.dumps(found[name]), flush=True)
    print(
        sum(x.get("holds") is True for x in found.values()), "of", len(found), "within 1 % or 1 us"
    )


def do_bench(call: Callable[[], Any]) -> dict[str, float]:
    from triton.testing import do_bench as bench

    values = bench(call, warmup=25, rep=100, return_mode="all")
    return {"do_bench mean": 1e3 * mean(values), "do_bench median": 1e3 * median(values)}


def timer(call: Callable[[], Any]) -> dict[str, float]:
    from torch.utils.benchmark import Timer

    found = Timer("call()", globals={"call": call}).blocked_autorange(min_run_time=0.25)
    return {"torch.utils.benchmark": 1e6 * found.median}


def truths() -> dict[str, float]:
    """Of the spin kernels: median of what they say themselves, us."""
    import torch

    out = {}
    for us in (20, 200, 2000):
        call, took = spin(us)
        values = []
        for _ in range(60):
            call()
            torch.cuda.synchronize()
            values.append(took() / 1e3)
        out[f"spin {us} us"] = median(values)
    return out


def run_nvbench(out: str, order: list[str]) -> None:
    """All calls by cuda-bench, in this process."""
    import cuda.bench as bench
    import torch

    calls = workloads()

    def state(state: Any) -> None:
        call = calls[state.get_string("call")]
        call()
        torch.cuda.synchronize()

        def launch(launch: Any) -> None:
            with torch.cuda.stream(torch.cuda.ExternalStream(launch.get_stream().addressof())):
                call()

        state.exec(launch, batched=False)

    bench.register(state).add_string_axis("call", order)
    bench.run_all_benchmarks(["bench_measure", "--json", out, "-d", "0", "--timeout", "0.6"])


def nvbench_results(path: str) -> dict[str, dict[str, float]]:
    out = {}
    for state in json.loads(Path(path).read_text())["benchmarks"][0]["states"]:
        values = {
            s["tag"]: s["data"][0]["value"] for s in state["summaries"] or [] if s.get("data")
        }
        name = next(a["value"] for a in state["axis_values"] if a["name"] == "call")
        out[name] = {
            "nvbench mean": 1e6 * float(values.get("nv/cold/time/gpu/mean", "nan")),
            "nvbench median": 1e6 * float(values.get("nv/cold/time/gpu/median", "nan")),
            "nvbench MHz": 1e-6 * float(values.get("nv/cold/sm_clock_rate/mean", "nan")),
        }
    return out


TOOLS: dict[str, Callable[[Callable[[], Any]], dict[str, float]]] = {
    "ours": lambda call: ours(call, 1.4), "article": article, "do_bench": do_bench, "timer": timer,
}  # fmt: skip


def main(out: Path, seconds: float, nvbench: bool) -> None:
    found: dict[str, Any] = {"times_us": {}, "order": []}

    def keep() -> None:
        out.write_text(json.dumps(found, indent=1))

    calls = workloads()
    found["truth_us"] = truths()
    keep()
    began = time.monotonic()
    pairs = [(name, tool) for name in calls for tool in TOOLS]
    random.shuffle(pairs)
    half = len(pairs) // 2
    for at, (name, tool) in enumerate(pairs):
        if at == half and nvbench:
            order = list(calls)
            random.shuffle(order)
            raw = str(out.with_suffix(".nvbench.json"))
            results, error = nvbench_process(raw, order)
            for call, values in results.items():
                found["times_us"].setdefault(call, {}).update(values)
            found |= {"nvbench failed": error} if error else {}
            keep()
        if time.monotonic() - began > seconds:
            found["cut"] = f"{len(pairs) - at} of {len(pairs)} left out"
            break
        try:
            values = TOOLS[tool](calls[name])
        except Exception as error:
            values = {f"{tool} failed: {error}": float("nan")}
        found["times_us"].setdefault(name, {}).update(values)
        found["order"].append([name, tool])
        keep()
    keep()
    if nvbench:
        again(found, calls, out)
        keep()
    table(found)


def again(
    found: dict[str, Any], calls: dict[str, Callable[[], Any]], out: Path, rounds: int = 3
) -> None:
    """Calls that our cold device mode and cuda-bench disagree on, in turns: what draws much power runs at a clock that
    depends on the seconds before (`nvbench MHz`: a matrix product at 1,594 of 1,980 on an H100)."""
    times = found["times_us"]
    names = [n for n, v in times.items() if {OURS, THEIRS} <= set(v) and differ(v[OURS], v[THEIRS])]
    for at in range(rounds if names else 0):
        raw = str(out.with_suffix(f".again-{at}.nvbench.json"))
        theirs, error = nvbench_process(raw, random.sample(names, len(names)))
        found |= {"nvbench failed": error} if error else {}
        for name in random.sample(names, len(names)):
            us, mhz = cold_with_clock(calls[name])
            other = theirs.get(name, {})
            pair = {
                "nvbench": other.get(THEIRS),
                "ours": us,
                "nvbench MHz": other.get("nvbench MHz"),
                "ours MHz": mhz,
            }
            found.setdefault("again", {}).setdefault(name, []).append(pair)


STAMP = r"""
extern "C" __global__ void stamp(unsigned long long* out) {
  unsigned int sm; unsigned long long clock, ns;
  asm volatile("mov.u32 %0, %smid;" : "=r"(sm));
  asm volatile("mov.u64 %0, %clock64;" : "=l"(clock));
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  out[2 * sm] = clock, out[2 * sm + 1] = ns;
}
"""


def cold_with_clock(call: Callable[[], Any], seconds: float = 0.8) -> tuple[float, float]:
    """Mode `device` with a cold L2: (median us, the SMs' clock meanwhile in MHz, by their own counters)."""
    import cupy
    import torch

    from nsysalign.measure.cuda import Cuda
    from nsysalign.measure.modes import Modes
    from nsysalign.measure.target import Workload

    gpu, kernel = Cuda(), cupy.RawKernel(STAMP, "stamp")
    mode = Modes(gpu, Workload(call), 1e5).make("device", "cold")

    def stamp() -> Any:
        out = torch.zeros(2 * 512, dtype=torch.int64, device="cuda")
        kernel((8 * gpu.sms,), (1,), (cupy.uint64(out.data_ptr()),))
        torch.cuda.synchronize()
        return out.view(-1, 2)

    mode.block(20)
    before, began, values = stamp(), time.monotonic(), []
    while time.monotonic() - began < seconds:
        values += mode.block(100)
    after = stamp()
    on_both = (before[:, 0] > 0) & (after[:, 0] > 0)
    cycles, ns = (after - before)[on_both].double().mean(0).tolist()
    return median(values) / 1e3, 1e3 * cycles / ns


OURS, THEIRS = "device cold", "nvbench median"


def differ(ours_us: float, theirs_us: float) -> bool:
    """Whether a call of over 10 us differs by more than 1 % and 0.3 us."""
    return theirs_us > 10 and abs(ours_us - theirs_us) > max(0.3, 0.01 * theirs_us)


def nvbench_process(raw: str, order: list[str]) -> tuple[dict[str, dict[str, float]], str]:
    """(its results, what went wrong)."""
    command = [sys.executable, __file__, "--nvbench-process", raw, json.dumps(order)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return (nvbench_results(raw), "") if done.returncode == 0 else ({}, done.stderr[-1000:])


def table(found: dict[str, Any]) -> None:
    heads = ["device cold", "nvbench mean", "nvbench median", "do_bench mean", "do_bench median", "device warm", "event warm", "article median", "article mean", "torch.utils.benchmark", "steady warm", "empty kernel", "nvbench MHz"]  # fmt: skip
    print(" | ".join(["us", "truth", *heads]))
    for name, values in found["times_us"].items():
        cells = [f"{values[h]:.2f}" if h in values else "" for h in heads]
        print(
            " | ".join(
                [
                    name,
                    f"{found['truth_us'].get(name, float('nan')):.2f}".replace("nan", ""),
                    *cells,
                ]
            )
        )


if __name__ == "__main__":
    if sys.argv[1] == "--nvbench-process":
        run_nvbench(sys.argv[2], json.loads(sys.argv[3]))
    elif sys.argv[1] == "--table":
        table(json.loads(Path(sys.argv[2]).read_text()))
    else:
        limit = (
            float(sys.argv[sys.argv.index("--seconds") + 1]) if "--seconds" in sys.argv else 60.0
        )
        if "--in-turns" in sys.argv:
            all_in_turns(Path(sys.argv[1]), limit)
        else:
            main(Path(sys.argv[1]), limit, "--nvbench" in sys.argv)
