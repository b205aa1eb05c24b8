"""Workers that are ended by SIGTERM: a spawn pool left by `with`, Process.terminate; on the GPU
where there is one."""

import multiprocessing
import sys
import time


def work(n: int) -> int:
    if "--gpu" in sys.argv:
        import torch

        x = torch.ones(512, 512, device="cuda")
        for _ in range(20):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            x @ x
            end.record()
            end.synchronize()
            start.elapsed_time(end)
    return n * n


def work_and_wait(queue: multiprocessing.Queue) -> None:
    queue.put(work(7))
    time.sleep(100)


if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(1) as pool:
        print(pool.map(work, range(3)))
    queue = spawn.Queue()
    process = spawn.Process(target=work_and_wait, args=(queue,))
    process.start()
    print(queue.get())
    process.terminate()
    process.join()
    print(process.exitcode)
