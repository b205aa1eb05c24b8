"""What our own recorder costs on a GPU, and whether a program has its plain speed back without CUPTI.

    python scripts/bench_recorder.py costs [--turns 4]       plainly, with the log alone, under nsys, under
                                                             the recorder, in turns
    python scripts/bench_recorder.py untraced [--turns 20]   in each of so many processes: before CUPTI was ever
                                                             started, beside the turns without it
    python scripts/bench_recorder.py printed [--turns 4]     what a program prints of itself, with --untraced

Times are medians, in us; what is compared lies in one process or in neighbouring ones.  Where a CPU changes its
speed by a third from one second to the next (seen on machines that are shared), no median tells two ways apart:
`X / loop` is the time beside the one that a loop of plain Python takes right before it.  Prints a line for each
process, JSON, and at the end the ratios with their 95 % intervals over the processes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

WARM_S, PRINTED_S, SWITCHES = 2.5, 12.0, 6
#: Repetitions of each kind of work in one block.
REPETITIONS = {"launches": 40, "products": 15, "copy": 30, "training": 20}


def kinds_of_work() -> dict[str, Callable[[], object]]:
    """Launch-bound, GPU-bound, copies, and a training step."""
    import torch

    torch.manual_seed(0)
    small = torch.zeros(256, device="cuda")
    left, right = (torch.randn(2048, 2048, device="cuda") for _ in range(2))
    pinned = torch.empty(8 << 20).pin_memory()
    target = torch.empty(8 << 20, device="cuda")
    net = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)]).cuda()
    optimizer = torch.optim.Adam(net.parameters())
    batch = torch.randn(64, 256, device="cuda")

    def launches() -> None:
        for _ in range(40):
            small.add_(1)

    def products() -> None:
        for _ in range(8):
            torch.mm(left, right)

    def copy() -> None:
        target.copy_(pinned, non_blocking=True)

    def training() -> None:
        optimizer.zero_grad()
        net(batch).square().mean().backward()
        optimizer.step()

    return {work.__name__: work for work in (launches, products, copy, training)}


def timed(work: Callable[[], object]) -> float:
    """What a pair of events around it reads, in us."""
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3


def loop() -> float:
    """How long the CPU takes for always the same, in us."""
    began = time.perf_counter()
    for _ in range(3000):
        pass
    return (time.perf_counter() - began) * 1e6


def block(works: dict[str, Callable[[], object]], repetitions: dict[str, int]) -> dict[str, list]:
    """Times by kind, each behind that of the loop."""
    return {
        kind: [(loop(), timed(works[kind])) for _ in range(times)]
        for kind, times in repetitions.items()
    }


def medians(blocks: list[dict[str, list]]) -> dict[str, float]:
    said = {}
    for kind in REPETITIONS:
        both = [pair for one in blocks for pair in one[kind]]
        said[kind] = statistics.median(took for _, took in both)
        said[f"{kind} / loop"] = statistics.median(took / looped for looped, took in both)
    return said


def untraced_process() -> dict:
    """One process: before CUPTI, its turns, after CUPTI."""
    from nsysalign.probe.recorder import OPTIONS, TURNS, Recorder
    from nsysalign.record import cupti

    works = kinds_of_work()
    until = time.monotonic() + WARM_S
    while time.monotonic() < until:
        block(works, REPETITIONS)
    before = [block(works, REPETITIONS) for _ in range(12)]
    os.environ[OPTIONS] = TURNS
    recorder = Recorder(str(cupti.library()))
    libraries = os.pathsep.join(map(str, cupti.libraries_of_cupti(os.environ)))
    with tempfile.TemporaryDirectory() as folder:
        if not recorder.start(folder, libraries):
            raise SystemExit(recorder.problem())
        time.sleep(1.2)  # it listens to other threads' calls a second after it was loaded
        traced = [block(works, REPETITIONS)]
        untraced: list[dict[str, list]] = []
        switches_ms = []
        for _ in range(SWITCHES):
            for on in (False, True):
                began = time.perf_counter()
                while (status := recorder.turn(on)) == 0:
                    time.sleep(0.01)
                if status < 0:
                    raise SystemExit(recorder.problem())
                switches_ms.append(round(1e3 * (time.perf_counter() - began), 1))
                if on:
                    traced.append(block(works, dict.fromkeys(REPETITIONS, 3)))
                else:
                    untraced += [block(works, REPETITIONS) for _ in range(2)]
        recorder.stop(True)
    after = [block(works, REPETITIONS) for _ in range(6)]
    return {
        "before": medians(before),
        "untraced": medians(untraced),
        "after": medians(after),
        "traced": medians(traced),
        "switches_ms": switches_ms,
    }


def cost_process() -> dict[str, float]:
    """A launch, an empty pair with its comparison, and a training step, as the host sees them."""
    import torch

    works = kinds_of_work()
    small = torch.zeros(64, device="cuda")

    def each(work: Callable[[], object], times: int) -> float:
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(times):
            work()
        return (time.perf_counter() - began) / times * 1e6

    def row() -> tuple[float, ...]:
        looped, launch = loop(), each(lambda: small.add_(1), 300)
        pair, training = each(lambda: timed(lambda: None), 50), each(works["training"], 5)
        took = (launch, pair, training)
        looped = (looped + loop()) / 2
        return *took, *[one / looped for one in took]

    until = time.monotonic() + WARM_S
    while time.monotonic() < until:
        row()
    columns = zip(*[row() for _ in range(60)], strict=True)
    names = ("launch", "pair", "training")
    names += tuple(f"{name} / loop" for name in names)
    return {name: statistics.median(column) for name, column in zip(names, columns, strict=True)}


def printed_process() -> dict[str, float]:
    """What a program prints of its own repetitions: medians and means."""
    works = kinds_of_work()
    for work in works.values():
        for _ in range(20):
            work()
    took: dict[str, list[float]] = {kind: [] for kind in works}
    until = time.monotonic() + PRINTED_S
    while time.monotonic() < until:
        for kind, work in works.items():
            took[kind].append(timed(work))
    said = {f"{kind}, median": statistics.median(times) for kind, times in took.items()}
    return said | {f"{kind}, mean": statistics.mean(times) for kind, times in took.items()}


PROCESSES = {"costs": cost_process, "untraced": untraced_process, "printed": printed_process}


def process(what: str, recorder: tuple[str, ...] = ()) -> dict:
    """What one process of its own said; recorder: options of `nsysalign run`, none for plainly."""
    words = [sys.executable, __file__, what, "--inside"]
    with tempfile.TemporaryDirectory() as folder:
        if recorder:
            run = ["run", "-q", "--no-clocks", "--no-host-timers", *recorder, "-o", f"{folder}/run"]
            words = [sys.executable, "-m", "nsysalign", *run, "--", *words]
        began = time.monotonic()
        ended = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
        said = json.loads(ended.stdout.splitlines()[-1])
    return said | {"command, s": time.monotonic() - began}


def forked(what: str) -> dict:
    """The same of a child of this process, which has imported torch and not used the GPU: that saves seconds each."""
    import torch  # noqa: F401

    reading, writing = os.pipe()
    if not (child := os.fork()):
        status = 1
        try:
            os.write(writing, json.dumps(PROCESSES[what]()).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    if status:
        raise SystemExit(f"a child ended with {status}")
    return json.loads(said)


def ratio(tops: list[float], bottoms: list[float]) -> str:
    """The geometric mean of their quotients, with its 95 % interval."""
    logs = [math.log(top / bottom) for top, bottom in zip(tops, bottoms, strict=True)]
    middle = statistics.mean(logs)
    bar = 1.96 * statistics.stdev(logs) / len(logs) ** 0.5 if len(logs) > 1 else math.inf
    low, high = math.exp(middle - bar), math.exp(middle + bar)
    return f"{math.exp(middle):.3f} ({low:.3f} to {high:.3f})"


def in_turns(what: str, ways: dict[str, tuple[str, ...]], turns: int) -> None:
    said: dict[str, list[dict]] = {way: [] for way in ways}
    for _ in range(turns):
        for way, options in ways.items():
            said[way].append(process(what, options))
            print(json.dumps({"way": way, **said[way][-1]}), flush=True)
    plain, *recorded = ways
    for way in recorded:
        for name in said[plain][0]:
            tops, bottoms = ([one[name] for one in said[w]] for w in (way, plain))
            print(f"{way} / {plain}: {name} {ratio(tops, bottoms)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=PROCESSES)
    parser.add_argument("--turns", type=int)
    parser.add_argument("--inside", action="store_true", help="one of the processes themselves")
    asked = parser.parse_args()
    if asked.inside:
        print(json.dumps(PROCESSES[asked.what]()), flush=True)
    elif asked.what == "untraced":
        said = []
        for _ in range(asked.turns or 20):
            said.append(forked("untraced"))
            print(json.dumps(said[-1]), flush=True)
        for top, bottom in (
            ("untraced", "before"),
            ("untraced", "after"),
            ("after", "before"),
            ("traced", "before"),
        ):
            for kind in said[0][top]:
                quotient = ratio([s[top][kind] for s in said], [s[bottom][kind] for s in said])
                print(f"{top} / {bottom}: {kind} {quotient}")
    elif asked.what == "costs":
        ways = {name: ("--recorder", name) for name in ("log", "nsys", "cupti")}
        in_turns("costs", {"plain": ()} | ways, asked.turns or 4)
    else:
        ways = {"plain": (), "untraced": ("--recorder", "cupti", "--untraced")}
        in_turns("printed", ways, asked.turns or 4)


if __name__ == "__main__":
    main()
