"""What `run --sample-python` costs a program in pure Python: docs/cost.md.

    python scripts/bench_python_sampling.py [--nsys PATH] [--rounds 2]

Runs a loop alone, under nsys, and under nsys with Python sampled at several rates, in turn.  Needs no GPU.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from nsysalign.record.nsys import find_nsys

LOOP = """
import time
def work(n):
    s = 0
    for i in range(n):
        s += i * i
cpu, took = time.process_time(), []
for _ in range(400):
    begun = time.perf_counter()
    work(60_000)
    took.append(time.perf_counter() - begun)
took.sort()
print(f"fastest tenth {took[40] * 1e3:.2f} ms, median {took[200] * 1e3:.2f} ms, processor {time.process_time() - cpu:.2f} s")
"""
RATES = (100, 1000, 2000)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nsys")
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    nsys = find_nsys(given.nsys).path
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "loop.py"
        program.write_text(LOOP)
        plain = [sys.executable, str(program)]
        profile = [
            nsys,
            "profile",
            "-t",
            "cuda,nvtx",
            "--sample=none",
            "--cpuctxsw=none",
            "-f",
            "true",
            "-o",
            f"{folder}/trace",
        ]
        sampled = [
            [*profile, "--python-sampling=true", f"--python-sampling-frequency={rate}"]
            for rate in RATES
        ]
        ways = [
            ("alone", []),
            ("nsys", profile),
            *zip([f"{rate} Hz" for rate in RATES], sampled, strict=True),
        ]
        for _ in range(given.rounds):
            for name, before in ways:
                said = subprocess.run(
                    [*before, *plain], capture_output=True, text=True, check=True
                ).stdout
                print(f"{name:<8}", next(line for line in said.splitlines() if "fastest" in line))


if __name__ == "__main__":
    main()
