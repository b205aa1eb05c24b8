"""Three processes at once under our own recorder, each with what is known to break one, for minutes.

    python scripts/soak.py [--minutes 9]

In each: buffers of 64 kB, a thread of C++ that launches in bursts, a thread that launches, records and queries
events while it holds the interpreter's lock, one that replays a CUDA graph, and training from a DataLoader with
pinned memory.  One of them also forks, one uses torch.profiler.  Prints what the program counted beside what is
in its analysis.  Needs a GPU and nvcc.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

MODES = ("plain", "forks", "profiler")
FORK_EVERY_S, PROFILE_EVERY_S = 3, 20
#: Room for nine minutes: by default a recording ends at 2 GB.
OPTIONS = "buffer=65536 limit=20000000000"
THREADS = """
#include <atomic>
#include <thread>
#include <unistd.h>
__global__ void soak_free(float *x) { x[threadIdx.x] += 1.f; }
__global__ void soak_held(float *x) { x[threadIdx.x] += 2.f; }
static std::atomic<bool> going;
static std::atomic<long> launched;
static std::thread worker;
static float *memory;
extern "C" void soak_start() {
    cudaMalloc(&memory, 4096);
    going = true;
    worker = std::thread([] {
        cudaStream_t stream;
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        while (going) {
            for (int i = 0; i < 40; i++, launched++) soak_free<<<1, 32, 0, stream>>>(memory);
            cudaStreamSynchronize(stream);
            usleep(40000);
        }
    });
}
extern "C" long soak_stop() { going = false; worker.join(); return launched; }
extern "C" void soak_held_once() {
    static cudaEvent_t event;
    static cudaStream_t stream;
    if (!event) cudaEventCreate(&event), cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    soak_held<<<1, 32, 0, stream>>>(memory);
    cudaEventRecord(event, stream);
    while (cudaEventQuery(event) == cudaErrorNotReady) ;
}
"""


def soak(mode: str, seconds: float, library: str) -> dict[str, int]:
    """One process; how often it did what."""
    import torch

    going = True
    times = dict.fromkeys(("soak_free", "soak_held", "replays", "pairs", "forks", "windows"), 0)
    free, held = ctypes.CDLL(library), ctypes.PyDLL(library)
    counter = torch.zeros(1024, device="cuda")
    counter.add_(1)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(5):
            counter.add_(1)

    def replay() -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            while going:
                graph.replay()
                times["replays"] += 1
                stream.synchronize()
                time.sleep(0.03)

    def launch_with_the_lock() -> None:
        while going:
            held.soak_held_once()
            times["soak_held"] += 1
            time.sleep(0.002)

    def fork() -> None:
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
        times["forks"] += 1

    def profile() -> None:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]):
            counter.add_(1)
            torch.cuda.synchronize()
        times["windows"] += 1

    net = torch.nn.Linear(128, 1).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)

    def step(batch: torch.Tensor) -> None:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        loss = net(batch.cuda(non_blocking=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        end.record()
        end.synchronize()
        start.elapsed_time(end)
        times["pairs"] += 1

    free.soak_start()
    threads = [threading.Thread(target=target) for target in (replay, launch_with_the_lock)]
    for thread in threads:
        thread.start()
    began = latest = time.monotonic()
    every, extra = {"forks": (FORK_EVERY_S, fork), "profiler": (PROFILE_EVERY_S, profile)}.get(
        mode, (float("inf"), fork)
    )
    data = torch.utils.data.TensorDataset(torch.ones(4000, 128))
    while time.monotonic() - began < seconds:
        loader = torch.utils.data.DataLoader(data, batch_size=32, num_workers=2, pin_memory=True)
        for (batch,) in loader:
            step(batch)
            time.sleep(0.004)
            if time.monotonic() - latest > every:
                extra()
                latest = time.monotonic()
    going = False
    for thread in threads:
        thread.join()
    times["soak_free"] = free.soak_stop()
    torch.cuda.synchronize()
    return times


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=9)
    parser.add_argument("--inside", nargs=2, help="one of the processes: its mode, the library")
    asked = parser.parse_args()
    if asked.inside:
        mode, library = asked.inside
        print(json.dumps(soak(mode, asked.minutes * 60, library)), flush=True)
        return 0
    import nsysalign

    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "threads.cu"), f"{folder}/threads.so"
        source.write_text(THREADS)
        subprocess.run(["nvcc", "-O1", "-shared", "-Xcompiler", "-fPIC", "-o", library, source], check=True)  # fmt: skip
        minutes = str(asked.minutes)
        tool = [sys.executable, "-m", "nsysalign", "run", "-q", "--recorder", "cupti"]
        tool += ["--no-host-timers", "--no-clocks"]
        running = {
            mode: subprocess.Popen(
                [*tool, "-o", f"{folder}/{mode}", "--", __file__, "--minutes", minutes, "--inside", mode, library],
                stdout=subprocess.PIPE, text=True, env=os.environ | {"NSYSALIGN_RECORDER_OPTIONS": OPTIONS},
            )
            for mode in MODES
        }  # fmt: skip
        for mode, process in running.items():
            said, _ = process.communicate()
            print(f"{mode}: status {process.returncode}, counted {said.strip()}", flush=True)
            analysis = nsysalign.load(Path(folder, mode))
            kernels = analysis.kernels[analysis.kernels["label"] == "run"]
            for name in ("soak_free", "soak_held"):
                ran = kernels[kernels["name"].str.contains(name)]["count"].sum()
                print(f"  {name}: {ran} in the recording")
            print(f"  pairs: {len(analysis.intervals)}", *analysis.notes, sep="; ", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
