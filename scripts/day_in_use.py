"""A long day under `nsysalign run`, without a GPU: what the recording weighs and how long one waits
after the program's end.

    python scripts/day_in_use.py                       # a loop, a server that forks, many processes at once
    python scripts/day_in_use.py loop --scale 0.1      # one of them, a tenth as long
    python scripts/day_in_use.py loop --minutes 30     # the same pairs, spread over half an hour

torch is the tests' stand-in, and the export gets the API call of every record and one kernel per
process from tests/collect/fakegpu.py (of the loop five between each record and the next), whose
seconds are within those after the end.  Needs an nsys.
Prints, for each program: its own seconds plainly and under the tool, the seconds from its end to
the tool's end, the largest process of the program in either case, and with the tool and nsys, the
sizes of logs and trace, and how many of the pairs that it compared are in the stored analysis.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

COMMON = """
import json, os, sys, time
import nsysalign, torch
began, PACE = time.time(), float(os.environ["PACE"])
def pair(n):
    for _ in range(n):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record(); b.record(); a.elapsed_time(b)
def ended(pairs):
    peak = max(int(line.split()[1]) for line in open("/proc/self/status") if "VmHWM" in line)
    json.dump(dict(began=began, ended=time.time(), pairs=pairs, peak_kib=peak), open(os.environ["DAY"], "w"))
"""
#: In a process of its own: Linux counts the memory of a parent as that of its next child.
COUNT = """
import sqlite3, sys
count = "select count(*) from intervals where kind = 'event'"
print(sqlite3.connect(sys.argv[1]).execute(count).fetchone()[0])
"""
#: name -> (program, its size at --scale 1, what that counts)
PROGRAMS = {
    "loop": (
        """
for step in range(N // 100):
    with nsysalign.region("step"):
        pair(100)
    time.sleep(max(0.0, began + (step + 1) * PACE - time.time()))
ended(N // 100 * 100)
""",
        200_000,
        "pairs, ten launches for each",
    ),
    "server": (
        """
for worker in range(N):
    child = os.fork()
    if not child:
        pair(20)
        os._exit(0)
    os.waitpid(child, 0)
ended(N * 20)
""",
        1_000,
        "forked workers, 20 pairs each",
    ),
    "many": (
        """
children = []
for worker in range(N):
    children.append(os.fork())
    if not children[-1]:
        for _ in range(20):
            pair(50); time.sleep(0.1)
        os._exit(0)
for child in children:
    os.waitpid(child, 0)
ended(N * 1000)
""",
        64,
        "processes at once, 1,000 pairs each",
    ),
}


def stand_in(folder: Path) -> Path:
    """An nsys whose exports hold a GPU's part."""
    from nsysalign.record.nsys import find_nsys

    tool, real = folder / "bin" / "nsys", find_nsys().path
    tool.parent.mkdir()
    tool.write_text(f"""#!/bin/bash
[ "$1" = export ] || exec {real} "$@"
{real} "$@" && cd {ROOT} && exec {sys.executable} -m tests.collect.fakegpu "$5" "$(dirname "$5")"
""")
    tool.chmod(0o755)
    return tool


def once(folder: Path, command: list[str], launches: int = 0, pace: float = 0) -> dict:
    """What the program wrote at its end; seconds from there to the command's end, status, largest
    process.  A step of the loop takes `pace` seconds or more."""
    path = os.pathsep.join([str(ROOT / "tests/collect/faketorch"), str(ROOT)])
    env = os.environ | {"DAY": str(folder / "day.json"), "PYTHONPATH": path}
    env["NSYS"] = str(folder / "bin" / "nsys")
    env |= {"FAKE_LAUNCHES": str(launches), "PACE": str(pace)}
    process = subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    told = json.loads((folder / "day.json").read_text())
    (folder / "day.json").unlink()
    told |= {"waited_s": time.time() - told["ended"], "peak_of_all_kib": usage.ru_maxrss}
    return told | {"status": os.waitstatus_to_exitcode(status)}


def day(name: str, scale: float, minutes: float) -> dict:
    program, size, counts = PROGRAMS[name]
    count = max(int(size * scale), 1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        stand_in(folder)
        (folder / "day.py").write_text(f"N = {count}\n{COMMON}{program}")
        plain = once(folder, [sys.executable, "day.py"])
        run = [sys.executable, "-m", "nsysalign", "run", "-q", "-o", "out", "day.py"]
        steps = count // 100 or 1
        under = once(folder, run, 5 if name == "loop" else 0, minutes * 60 / steps)
        measured = subprocess.check_output(
            [sys.executable, "-c", COUNT, "out/analysis.db"], cwd=folder
        )
        mib = {
            what: sum(p.stat().st_size for p in (folder / "out").glob(pattern)) / 2**20
            for what, pattern in (("logs", "events-*"), ("trace", "trace.*"))
        }
    return {
        "program": f"{name}: {count:,} {counts}",
        "status": under["status"],
        "plain_s": round(plain["ended"] - plain["began"], 1),
        "under_s": round(under["ended"] - under["began"], 1),
        "after_its_end_s": round(under["waited_s"], 1),
        "largest_process_mib": [round(t["peak_kib"] / 1024) for t in (plain, under)],
        "largest_of_all_mib": round(under["peak_of_all_kib"] / 1024),
        "logs_mib": round(mib["logs"], 1),
        "trace_mib": round(mib["trace"], 1),
        "pairs": under["pairs"],
        "in_the_analysis": int(measured),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("program", nargs="*", choices=[[], *PROGRAMS], metavar="|".join(PROGRAMS))
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--minutes", type=float, default=0.0, help="that the loop lasts under it")
    arguments = parser.parse_args()
    for name in arguments.program or PROGRAMS:
        print(json.dumps(day(name, arguments.scale, arguments.minutes)), flush=True)


if __name__ == "__main__":
    main()
