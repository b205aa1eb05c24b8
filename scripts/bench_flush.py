"""What it would cost to hand over CUPTI's buffers now and then, so that SIGKILL loses less.  Needs a GPU and nsys.

    nsysalign run -q -o DIR -- python scripts/bench_flush.py

Prints one JSON line.  All times are medians in microseconds:
    flush0_after_N    cuptiActivityFlushAll(0), complete buffers only, after N intervals of one kernel each, all done
    flush1_after_N    the same, forced, as before a sudden end
    flush0_busy       while a kernel of 100 ms runs
    pair, pair_second, pair_flushed    an interval around one small kernel, by elapsed_time: without flushes; the same after
                      a pause as long as a flush took; right after a flush(0)
    host_*            the same pairs by the host's clock
    threads           the same pairs in blocks of half a second, without flushes (none) and while a thread of C hands over the complete
                      buffers (flush0) or all (flush1) every 50 ms: pairs, median, 99.9th percentile, largest, and how many are over
                      half as long again as the median of those without
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from types import ModuleType


def main() -> None:
    import torch

    probe = sys.modules.get("_nsysalign_probe")
    if probe is None or not torch.cuda.is_available():
        sys.exit("run it on a GPU, under `nsysalign run`")
    x = torch.zeros(1024, device="cuda")
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def pair() -> tuple[float, float]:
        """(by the events, by the host's clock) in microseconds."""
        began = time.perf_counter_ns()
        start.record()
        x.add_(1.0)
        end.record()
        host = (time.perf_counter_ns() - began) / 1e3
        end.synchronize()
        return start.elapsed_time(end) * 1e3, host

    for _ in range(100):
        pair()
    farewell = probe.running().farewell
    if not farewell._flush:
        sys.exit("nsys's CUPTI library was not found in this process")
    machine = sys.modules["_nsysalign_probe.machine"]
    function = machine.Function(farewell._flush)

    def flush(flag: int) -> float:
        began = time.perf_counter_ns()
        function(machine.Pointer(flag))
        return (time.perf_counter_ns() - began) / 1e3

    def after(count: int, flag: int, repeat: int = 20) -> float:
        values = []
        for _ in range(repeat):
            for _ in range(count):
                pair()
            values.append(flush(flag))
        return statistics.median(values)

    result = {
        f"flush{flag}_after_{n}": after(n, flag) for flag in (0, 1) for n in (0, 1, 10, 100, 1000)
    }
    busy = []
    for _ in range(10):
        torch.cuda._sleep(200_000_000)
        busy.append(flush(0))
        torch.cuda.synchronize()
    result["flush0_busy"] = statistics.median(busy)
    pause_s = result["flush0_after_1"] / 1e6
    first: dict[str, Callable[[], object]] = {
        "pair": lambda: None,
        "pair_second": lambda: time.sleep(pause_s),
        "pair_flushed": lambda: flush(0),
    }
    for name, before in first.items():
        values = []
        for _ in range(300):
            torch.cuda.synchronize()
            before()
            values.append(pair())
        result[name] = statistics.median(v[0] for v in values)
        result[f"host_{name}"] = statistics.median(v[1] for v in values)
    print(json.dumps({k: round(v, 2) for k, v in result.items()}), flush=True)
    print(json.dumps({"threads": threads(farewell._flush, machine, pair)}), flush=True)


def threads(
    flush: int, machine: ModuleType, pair: Callable[[], tuple[float, float]]
) -> dict[str, dict[str, float]]:
    """What the docstring above calls so."""
    start_thread = sys.modules["_nsysalign_probe.farewell"].start_thread
    call, address = machine.Call, machine.address
    off = {"flush0": machine.allocate(b"\1" * 8), "flush1": machine.allocate(b"\1" * 8)}
    once = [call(address("usleep"), (50_000,))]
    once += [call(flush, (flag,), if_zero=off[f"flush{flag}"]) for flag in (0, 1)]
    # getpid is never 0, so the thread goes round for ever
    start_thread([call(machine.function_of([*once, call(address("getpid"))]), until_zero=True)])
    times: dict[str, list[tuple[float, float]]] = {"none": [], "flush0": [], "flush1": []}
    for _ in range(3):
        for name, values in times.items():
            if name in off:
                machine.call("memcpy", off[name], bytes(8), 8)
            end = time.perf_counter() + 0.5
            while time.perf_counter() < end:
                values.append(pair())
            if name in off:
                machine.call("memcpy", off[name], b"\1" * 8, 8)
    answer = {}
    for which, prefix in enumerate(("", "host_")):
        usual = statistics.median(value[which] for value in times["none"])
        for name, values in times.items():
            one = sorted(value[which] for value in values)
            over = sum(value > 1.5 * usual for value in one)
            found = len(one), statistics.median(one), one[int(0.999 * len(one))], one[-1], over
            answer[prefix + name] = dict(
                zip(("pairs", "median", "p999", "largest", "over"), found, strict=True)
            )
    return answer


if __name__ == "__main__":
    main()
