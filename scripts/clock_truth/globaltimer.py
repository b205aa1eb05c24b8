"""Event pairs between kernels that note %globaltimer: the GPU's own witness of where each record lies.

    nsysalign run -o RUN -- python scripts/clock_truth/globaltimer.py STAMPS.json          on a GPU
    python scripts/clock_truth/globaltimer_check.py RUN STAMPS.json                        anywhere

Every start and every end has a stamping kernel before and behind it on its own stream.
"""

from __future__ import annotations

import collections
import json
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
from stamps import References, Stamps, event

import nsysalign


class Bench:
    """Measures pairs in batches; keeps {name, kind, start, end}, each side with floor and ceiling."""

    def __init__(self) -> None:
        self.stamps, self.references = Stamps(), References()
        self.counts, self.pending = collections.Counter(), []
        self.intervals, self.all_stamps = [], []

    def pair(self, kind: str, work=lambda: None, stamps: Stamps | None = None) -> None:
        """stamp, start, stamp, work, stamp, end, stamp on the current stream."""
        stamps = stamps or self.stamps
        start, end = event(), event()
        slots = [stamps.stamp()]
        with nsysalign.region(kind):
            start.record()
            slots.append(stamps.stamp())
            work()
            slots.append(stamps.stamp())
            end.record()
        slots.append(stamps.stamp())
        self._keep(kind, start, end, slots)

    def empty(self, kind: str) -> None:
        """Nothing but the two records between two stamps."""
        start, end = event(), event()
        before = self.stamps.stamp()
        with nsysalign.region(kind):
            start.record()
            end.record()
        after = self.stamps.stamp()
        self._keep(kind, start, end, [before, after, before, after])

    def bare(self, kind: str, work) -> None:
        """stamp, start, work, stamp, end, stamp: the work comes right after the record."""
        start, end = event(), event()
        slots = [self.stamps.stamp()]
        with nsysalign.region(kind):
            start.record()
            work()
            slots += [self.stamps.stamp()] * 2
            end.record()
        slots.append(self.stamps.stamp())
        self._keep(kind, start, end, slots)

    def _keep(self, kind: str, start, end, slots: list[int]) -> None:
        self.pending.append((kind, self.counts[kind], start, end, slots))
        self.counts[kind] += 1

    def compare(self) -> None:
        """What the program does with its pairs; then the stamps and the distances are put aside."""
        torch.cuda.synchronize()
        for _, _, start, end, _ in self.pending:
            start.elapsed_time(end)
        self.references.renew()
        stamps = self.stamps.read()
        self.all_stamps += stamps
        for kind, number, start, end, slots in self.pending:
            row = {"name": f"{kind}#{number}", "kind": kind}
            for side, each, (before, after) in (
                ("start", start, slots[:2]),
                ("end", end, slots[2:]),
            ):
                reference, ms = self.references.distance(each)
                row[side] = {
                    "floor": stamps[before][2],
                    "ceiling": stamps[after][1],
                    "reference": reference,
                    "ms": ms,
                }
            self.intervals.append(row)
        self.pending = []


def measure(bench: Bench, repeats: int) -> None:
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    square = torch.randn(2048, 2048, dtype=torch.float16, device="cuda")
    product, small = torch.empty_like(square), torch.ones(64, device="cuda")
    host = torch.empty(8 << 20, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(8 << 20, dtype=torch.uint8, device="cuda")
    pageable = torch.empty(1 << 20, dtype=torch.uint8)
    graph = torch.cuda.CUDAGraph()
    torch.mm(square, square, out=product), small.add_(1), device.copy_(host, non_blocking=True)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(10):
            small.add_(1)

    def delay(ms: float = 3.0) -> None:
        torch.cuda._sleep(int(ms * 1_700_000))

    def upload() -> None:
        device.copy_(host, non_blocking=True)

    def multiply() -> None:
        torch.mm(square, square, out=product)

    for _ in range(repeats):
        torch.cuda.synchronize()
        bench.pair("idle")
        torch.cuda.synchronize()
        bench.pair("idle_matmul", multiply)
        torch.cuda.synchronize()
        bench.empty("idle_empty")
        bench.compare()

        delay()
        for _ in range(5):
            bench.pair("queued")
            bench.empty("queued_empty")
            bench.pair("queued_matmul", multiply)
        bench.compare()

        delay()
        bench.bare("copy", upload)
        bench.bare("graph", graph.replay)
        bench.bare("matmul", multiply)
        bench.compare()

        device.copy_(host, non_blocking=True)
        bench.bare("behind_copy", multiply)
        bench.bare("pageable", lambda: device[: 1 << 20].copy_(pageable))
        bench.bare("item", lambda: small[0].item())
        bench.compare()

        with torch.cuda.stream(side):
            for _ in range(100):
                torch.mm(square, square, out=product)
        bench.pair("beside", multiply)
        bench.empty("beside_empty")
        with torch.cuda.stream(side):
            bench.pair("side_stream", lambda: small.add_(1))
            side.wait_stream(main)
            bench.pair("side_waits")
        bench.compare()

        small.add_(1)
        time.sleep(0.03)
        bench.pair("pause_inside", lambda: time.sleep(0.01))
        bench.pair("pause_before")
        bench.compare()


def in_threads(bench: Bench, count: int, repeats: int) -> None:
    """Every thread on a stream of its own; stamps of their own, so that no slot is given twice."""
    parts = [Stamps() for _ in range(count)]
    kept: list[list] = [[] for _ in range(count)]

    def work(number: int) -> None:
        torch.cuda.set_device(0)
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(repeats):
                start, end, stamps = event(), event(), parts[number]
                slots = [stamps.stamp()]
                with nsysalign.region(f"thread_{number}"):
                    start.record()
                    slots.append(stamps.stamp(3_000))
                    slots.append(slots[-1])
                    end.record()
                slots.append(stamps.stamp())
                kept[number].append((start, end, slots))

    torch.cuda.synchronize()  # the slots are zeroed on this thread's stream
    threads = [threading.Thread(target=work, args=(n,)) for n in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for number, (stamps, pairs) in enumerate(zip(parts, kept, strict=True)):
        bench.stamps = stamps
        for start, end, slots in pairs:
            bench._keep(f"thread_{number}", start, end, slots)
        bench.compare()


def main() -> None:
    bench = Bench()
    bench.stamps.stamp(), bench.stamps.read()  # compiles
    bench.references.renew()
    measure(bench, 25)
    in_threads(bench, 3, 20)
    time.sleep(2)
    measure(bench, 5)
    out = {
        "device": torch.cuda.get_device_name(),
        "stamps": bench.all_stamps,
        "intervals": bench.intervals,
        "references_ms": bench.references.lines,
    }
    Path(sys.argv[1]).write_text(json.dumps(out))
    print(f"{len(bench.intervals)} intervals, {len(bench.all_stamps)} stamps")


if __name__ == "__main__":
    main()
