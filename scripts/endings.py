"""How many intervals are kept, whatever ends the process that measured them.  Needs a GPU and nsys.

    python scripts/endings.py [--jobs N] [NAME...]

Runs each program plainly and under `nsysalign run`, N of them at once, and prints a line for each: its exit status without
and with the tool (and those of its children, where it prints them), the intervals it measured, those that were found in
the trace, what the logs say of the ends, how long a child went on after the signal, and the first reason where some are
missing.  Ends with status 1 if any is missing, but of the one that was killed, or if a status differs.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

MEASURE = """
import os, signal, subprocess, sys, time, torch
def measure(n=20, kernels=1):
    x = torch.ones(1 << 20, device="cuda")
    for _ in range(n):
        a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        a.record()
        for _ in range(kernels):
            x.mul_(1.0)
        b.record()
        torch.cuda.synchronize()
        a.elapsed_time(b)
"""

#: A child that measures, says so and goes on; its parent stops it and prints how it ended.
STOPPED = """
def child():
    measure()
    print("measured", flush=True)
    GO_ON
if __name__ == "__main__":
    if "child" in sys.argv:
        child()
    else:
        p = subprocess.Popen([*PREFIX, __file__, "child"], stdout=subprocess.PIPE, text=True)
        while "measured" not in p.stdout.readline():
            pass
        time.sleep(1)
        began = time.monotonic()
        p.send_signal(SIGNAL)
        p.stdout.read()
        print("child", p.wait())
        print(f"ended after {time.monotonic() - began:.2f} s", file=sys.stderr)
"""


def _stopped(
    go_on: str = "time.sleep(100)", how: str = "signal.SIGTERM", prefix: str = "sys.executable,"
) -> str:
    text = STOPPED.replace("GO_ON", go_on).replace("*PREFIX", prefix.rstrip(","))
    return text.replace("SIGNAL", how)


_POOL = """
import multiprocessing
def work(n):
    measure()
    return n
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(work, range(3)))
"""
_TORCHRUN = 'sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1"'

#: name -> (program after MEASURE, intervals it measures; None: as many as it comes to)
ENDINGS = {
    "in order": ("measure()", 20),
    "pool": (_POOL, 60),
    "pool, much work": (_POOL.replace("measure()", "measure(700, 30)"), 2100),
    "Process.terminate": (
        """
import multiprocessing
def work(done):
    measure()
    done.set()
    time.sleep(100)
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    done = context.Event()
    p = context.Process(target=work, args=(done,))
    p.start()
    done.wait()
    p.terminate()
    p.join()
    print("child", p.exitcode)
""",
        20,
    ),
    "subprocess terminated": (_stopped(), 20),
    "blocked in synchronize": (
        _stopped("torch.cuda._sleep(10_000_000_000)\n    torch.cuda.synchronize()"),
        20,
    ),
    "busy": (_stopped("while True:\n        measure(100, 5)"), None),
    "a handler of its own": (
        _stopped("signal.signal(signal.SIGTERM, lambda *a: sys.exit(7))\n    time.sleep(100)"),
        20,
    ),
    "SIGINT by default": (
        _stopped("signal.signal(signal.SIGINT, signal.SIG_DFL)\n    time.sleep(6)\n    measure()\n    time.sleep(100)", "signal.SIGINT")
        .replace("time.sleep(1)\n", "time.sleep(9)\n"),
        40,
    ),
    "Ctrl-C that nobody catches": ("measure(500, 20)\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(1)", 500),
    "torchrun stopped": (_stopped(prefix=_TORCHRUN), 20),
    "os._exit": ("measure(500, 20)\nos._exit(5)", 500),
    "exec": ("measure(500, 20)\nos.execlp('sh', 'sh', '-c', 'exit 6')", 500),
    "an uncaught exception": ("measure()\nraise KeyError('end')", 20),
    "a time limit by SIGALRM": ("signal.alarm(10)\nmeasure(500, 20)\ntime.sleep(100)", 500),
    "a crash": ("import ctypes\nmeasure(500, 20)\nctypes.string_at(0)", 500),
    "abort": ("measure(500, 20)\nos.abort()", 500),
    "killed": ("measure()\ntime.sleep(2)\nmeasure(1)\nos.kill(os.getpid(), signal.SIGKILL)", 21),
}  # fmt: skip


def _run(command: list[str], folder: Path, **env: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        command, cwd=folder, env=os.environ | env, capture_output=True, text=True, timeout=300
    )


def _with_us() -> str:
    """PYTHONPATH with this checkout first."""
    return os.pathsep.join(
        filter(None, [str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH")])
    )


def _lines(run_dir: Path) -> list[dict]:
    logs = [
        (gzip.open if p.suffix == ".gz" else open)(p, "rt") for p in run_dir.glob("events-*.jsonl*")
    ]
    return [json.loads(line) for log in logs for line in log]


def check(name: str, folder: Path) -> bool:
    """Run one program both ways, print its line; whether all is as it should be."""
    text, expected = ENDINGS[name]
    folder.mkdir()
    (folder / "script.py").write_text(MEASURE + text)
    command = [sys.executable, "script.py"]
    plain = _run(command, folder)
    tool = [sys.executable, "-m", "nsysalign", "run", "-q", "-o", "run", "--", *command]
    traced = _run(tool, folder, PYTHONPATH=_with_us())
    children = [
        [line for line in p.stdout.splitlines() if "child" in line] for p in (plain, traced)
    ]
    after = [re.findall(r"ended after (.*) s$", p.stderr, re.M) for p in (plain, traced)]
    log, document = _lines(folder / "run"), {"intervals": [], "unaligned": []}
    if (analysis := folder / "run" / "analysis.json").is_file():
        document = json.loads(analysis.read_text())
    measured = sum(line["type"] == "elapsed" and line["ms"] is not None for line in log)
    found = sum(i["kind"] == "event" for i in document["intervals"])
    if expected is None:
        expected = measured
    ends = [f"{e['how']} {e.get('signal', '')}".strip() for e in log if e["type"] == "end"]
    status = (
        plain.returncode if plain.returncode >= 0 else 128 - plain.returncode,
        traced.returncode,
    )
    print(
        f"{name:24} status {status[0]:>3} {status[1]:>3}  {' '.join(children[0]) or '-'} / {' '.join(children[1]) or '-'}"
        f"  expected {expected}  logged {measured}  found {found}  ends {ends}"
        f"  after {after}",
        *sorted({u["reason"] for u in document["unaligned"]})[:1],
        *([] if log else [traced.stderr[-600:]]),
        flush=True,
    )
    whole = found == expected or name == "killed"
    return whole and status[0] == status[1] and children[0] == children[1]


def main() -> None:
    import torch

    if not torch.cuda.is_available():
        sys.exit("endings.py needs a CUDA device")
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("names", nargs="*", metavar="NAME", default=list(ENDINGS))
    options = parser.parse_args()
    names = options.names
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        good = list(pool.map(lambda n: check(names[n], Path(folder) / str(n)), range(len(names))))
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
