"""Runs a benchmark under nsys and without it at the same time, in turns, on the same cores.

    python scripts/bench_turns.py OUT SCRIPT [ARG...]
    python scripts/score_predictions.py OUT

OUT becomes a run directory like that of `nsysalign run --baseline`, whose two runs met the same speed of the host: what is
left between a prediction and the run without nsys is the prediction's own error.  SCRIPT wraps what it measures in
`turns.turn()`, in the same order in both runs.  Both runs have the probe.
"""

from __future__ import annotations

import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from turns import VARIABLE

ROOT = Path(__file__).resolve().parents[1]
_WITHOUT = (
    "import sys; from pathlib import Path; from nsysalign.record.without_nsys import collect_baseline; "
    "sys.exit(collect_baseline(sys.argv[2:], Path(sys.argv[1]), profiled_status=0).exit_status)"
)
_PATIENCE_S = 300


def relay(listener: socket.socket, running: threading.Event) -> int:
    """Give turns to two processes until both have ended; how many.  The one that goes first changes every time."""
    sides: list[socket.socket] = []
    while running.is_set() and len(sides) < 2:
        if select.select([listener], [], [], 0.5)[0]:
            sides.append(listener.accept()[0])
    count = 0
    for side in sides:
        side.settimeout(_PATIENCE_S)
    while running.is_set() and sides:
        asked = [side for side in sides if side.recv(1) == b"?"]  # b"": it has ended
        if len(asked) < len(sides):  # the other one has nothing to be compared with any more
            for side in sides:
                side.close()
            return count
        for side in asked if count % 2 else asked[::-1]:
            side.sendall(b"!")
            side.recv(1)
        count += 1
    return count


def main() -> int:
    """Run both; the exit status is that of the run under nsys."""
    out, command = Path(sys.argv[1]).resolve(), sys.argv[2:]
    cpus = sorted(os.sched_getaffinity(0))[-2:]
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        address = f"{folder}/turns"
        listener.bind(address)
        listener.listen(2)
        env = os.environ | {
            VARIABLE: f"{address}:{cpus[-1]}:{cpus[0]}",
            "PYTHONPATH": os.pathsep.join(
                [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
            ),
        }
        alone = Path(folder) / "alone"
        alone.mkdir()
        script = [sys.executable, *command]
        running = threading.Event()
        running.set()
        counted: list[int] = []
        turns = threading.Thread(target=lambda: counted.append(relay(listener, running)))
        turns.start()
        without = subprocess.Popen(
            [sys.executable, "-c", _WITHOUT, str(alone), *script], env=env, cwd=ROOT
        )
        under = subprocess.run(
            [sys.executable, "-m", "nsysalign", "run", "-q", "-o", str(out), "--", *script],
            env=env,
            cwd=ROOT,
        )
        without.wait()
        running.clear()
        turns.join()
        print(
            f"{sum(counted)} turns each; under nsys: exit {under.returncode}, without: {without.returncode}"
        )
        shutil.move(alone / "baseline", out / "baseline")
    return under.returncode


if __name__ == "__main__":
    sys.exit(main())
