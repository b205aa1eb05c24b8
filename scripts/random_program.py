"""A random GPU program full of event pairs: a mix that no calibration was tuned on.

    python scripts/random_program.py SEED COUNT

Recorded with CUPTI's event timestamps it is ground truth for alignment (tests/data); run under `nsysalign run` it is a
stress test of the default mode.
"""

from __future__ import annotations

import itertools
import random
import sys
import time

import torch

SIZES = (64, 256, 1024, 4096)


class Work:
    """Things a program does between two records."""

    def __init__(self) -> None:
        cuda, byte = {"device": "cuda"}, torch.uint8
        self.square = {k: torch.randn(k, k, dtype=torch.float16, **cuda) for k in SIZES}
        self.small, self.big = torch.ones(64, **cuda), torch.empty(32 << 20, dtype=byte, **cuda)
        self.pinned, self.pageable = (
            torch.empty(8 << 20, dtype=byte, pin_memory=True),
            torch.empty(1 << 20, dtype=byte),
        )
        self.device8, self.device1 = (
            torch.empty(8 << 20, dtype=byte, **cuda),
            torch.empty(1 << 20, dtype=byte, **cuda),
        )
        self.model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)]).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.batch = torch.randn(32, 256, **cuda)

    def train(self) -> None:
        self.optimizer.zero_grad()
        self.model(self.batch).sum().backward()
        self.optimizer.step()

    def matmul(self) -> None:
        x = self.square[random.choice(SIZES)]
        torch.mm(x, x)

    def one(self) -> None:
        """One random piece of work on the current stream or the host."""
        choices = (
            (30, self.matmul),
            (20, lambda: self.small.add_(1)),
            (8, lambda: torch.cuda._sleep(random.choice((2_000, 20_000, 200_000)))),
            (6, lambda: self.big.zero_()),
            (5, lambda: self.device8.copy_(self.pinned, non_blocking=True)),
            (4, lambda: self.device1.copy_(self.pageable)),
            (4, lambda: self.small[0].item()),
            (3, torch.cuda.synchronize),
            (4, self.train),
            (6, lambda: busy_host(random.choice((5, 20, 100, 300)))),
            (4, lambda: torch.cuda.current_stream().synchronize()),
            (6, lambda: torch.softmax(self.square[1024], -1)),
        )
        random.choices([c for _, c in choices], [w for w, _ in choices])[0]()


def busy_host(us: float) -> None:
    end = time.perf_counter_ns() + int(us * 1000)
    while time.perf_counter_ns() < end:
        pass


def event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)


def group(
    work: Work, streams: list[torch.cuda.Stream]
) -> list[tuple[torch.cuda.Event, torch.cuda.Event]]:
    """A chain of one to six intervals on one stream, after a random prelude."""
    stream = random.choice(streams) if random.random() < 0.25 else streams[0]
    if random.random() < 0.5:
        torch.cuda.synchronize()
    if random.random() < 0.3:
        torch.cuda._sleep(random.choice((100_000, 1_000_000, 3_000_000)))
    if random.random() < 0.15:
        with torch.cuda.stream(random.choice(streams[1:])):
            torch.cuda._sleep(300_000)
    with torch.cuda.stream(stream):
        if random.random() < 0.3:
            work.one()
        chain = [event()]
        chain[0].record()
        for _ in range(random.choice((1, 1, 1, 2, 3, 6))):
            for _ in range(random.choice((0, 1, 1, 1, 2, 3, 8, 20))):
                work.one()
            if stream is not streams[0] and random.random() < 0.1:
                stream.wait_stream(streams[0])
            chain.append(event())
            chain[-1].record()
    whole = [(chain[0], chain[-1])] if len(chain) > 2 else []
    return [*itertools.pairwise(chain), *whole]


def main() -> None:
    random.seed(int(sys.argv[1]))
    torch.zeros(1, device="cuda")
    work, streams = Work(), [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    pairs: list = []
    for _ in range(int(sys.argv[2])):
        pairs += group(work, streams)
        if random.random() < 0.2:
            busy_host(random.choice((10, 200, 2000)))
        if len(pairs) > 200:
            compare(pairs)
    compare(pairs)
    print("done")


def compare(pairs: list) -> None:
    torch.cuda.synchronize()
    for a, b in pairs:
        a.elapsed_time(b)
    pairs.clear()


if __name__ == "__main__":
    main()
