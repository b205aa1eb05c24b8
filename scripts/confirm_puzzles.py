"""Puts the causes of the puzzles to the test on the GPU at hand and prints one line per verdict.

python scripts/confirm_puzzles.py [OUT]        about a minute; OUT gets one run directory per puzzle
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent / "puzzles"
#: puzzle, options of `nsysalign confirm`
PUZZLES = (
    ("linears_h2d", ()),
    ("small_launches", ()),
    ("effnet", ()),
    ("other_stream", ()),
    ("cold_l2", ("--intervention", "flush")),
    ("first_call_region", ("--label", "forward", "--intervention", "warm")),
)


def main() -> None:
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "confirm-out")
    print(
        f"{'puzzle':<15} {'label':<32} {'change':<12} {'verdict':<15} {'before':>9} {'predicted':>19} {'after':>9}  us"
    )
    for name, options in PUZZLES:
        run_dir = out / name
        command = [sys.executable, "-m", "nsysalign", "confirm", "-q", "-o", str(run_dir), *options]
        done = subprocess.run(
            [*command, "--", str(HERE / f"{name}.py")], capture_output=True, text=True
        )
        stored = run_dir / "confirm.json"
        if done.returncode or not stored.is_file():
            print(f"{name:<15} status {done.returncode}: {' '.join(done.stderr.split()[-60:])}")
            continue
        for c in json.loads(stored.read_text())["confirmations"]:
            us = {k: "-" if c[k] is None else f"{c[k] / 1e3:,.1f}" for k in c if k.endswith("_ns")}
            predicted = f"{us['predicted_low_ns']} - {us['predicted_high_ns']}"
            print(
                f"{name:<15} {c['label']:<32} {c['intervention']:<12} {c['verdict']:<15} {us['before_ns']:>9} "
                f"{predicted:>19} {us['after_ns']:>9}"
            )
            if c["verdict"] != "confirmed":
                print(f"{'':<15} {c['reason']}")
        for line in done.stderr.splitlines():
            if "refused" in line:
                print(f"{'':<15} {line.strip()}")


if __name__ == "__main__":
    main()
