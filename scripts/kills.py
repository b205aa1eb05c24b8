"""Kill one process of a run at any moment, and look at what is left.

    python scripts/kills.py [--moments 60] [--only tool,nsys,agent,launcher,holder,script]

Each process is killed with SIGKILL at so many moments: two thirds of them over a run's first two
seconds, the others over two seconds from the script's last line on.  Ten seconds after its end
nothing of the run lives but a script that nobody killed, its status is right, no pair is lost, and
no temporary folder is left after the next `analyze`.  Prints what does not hold, and exits with 1
then.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))
from nsysalign.record.processes import marked, of_run
from nsysalign.record.session import recover

PROCESSES = ("tool", "nsys", "agent", "launcher", "holder", "script")
FAKE_TORCH = Path(__file__).parents[1] / "tests" / "collect" / "faketorch"
PAIRS, STATUS, SECONDS = 20, 5, 2.0
SCRIPT = f"""
import time, torch
a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
for n in range({PAIRS}):
    a.record(); b.record(); a.elapsed_time(b)
    time.sleep(0.05)
print("ends", flush=True)
raise SystemExit({STATUS})
"""


def victim_of(kind: str, tool: subprocess.Popen, run_dir: Path) -> int | None:
    """The process to be killed, None if it is not there (yet)."""
    if kind == "tool":
        return tool.pid
    if kind == "script":
        return min(marked(b"NSYSALIGN_DIR=" + os.fsencode(run_dir)), default=None)
    for pid in sorted(marked(b"NSYSALIGN_RUN=" + os.fsencode(run_dir))):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        kinds = {
            "nsys": words[1:2] == [b"profile"],
            "agent": b"--start-agent" in words,
            "launcher": words[0].endswith(b"nsys-launcher"),
            "holder": words[1:3] == [b"-I", b"-S"],
        }
        if kinds[kind]:
            return pid
    return None


def try_once(kind: str, moment_s: float, folder: Path, *, at_end: bool = False) -> list[str] | None:
    """What does not hold if this process is killed after so long, of the run or after the script's
    last line; None if it was not there."""
    (folder / "script.py").write_text(SCRIPT)
    run_dir, temporary = folder / "run", folder / "tmp"
    temporary.mkdir()
    path = os.pathsep.join([str(FAKE_TORCH), str(Path(__file__).parents[1])])
    env = {k: v for k, v in os.environ.items() if not k.startswith("NSYSALIGN")}
    env |= {"PYTHONPATH": path, "TMPDIR": str(temporary)}
    tool = subprocess.Popen(
        [sys.executable, "-m", "nsysalign", "run", "--no-calibrate", "-o", str(run_dir), "script.py"],
        cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    if at_end:
        tool.stdout.readline()
    began = time.monotonic()
    time.sleep(moment_s)
    pid = None
    while pid is None and tool.poll() is None and time.monotonic() - began < moment_s + 0.5:
        pid = victim_of(kind, tool, run_dir)
    if pid is None or tool.poll() is not None:
        tool.communicate()
        return None
    os.kill(pid, signal.SIGKILL)
    try:
        _, err = tool.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        tool.kill()
        return ["it still runs after two minutes"]
    end = time.monotonic() + 30
    while marked(b"NSYSALIGN_DIR=" + os.fsencode(run_dir)) and time.monotonic() < end:
        time.sleep(0.05)  # a killed tool leaves the script running
    end = time.monotonic() + 10
    while of_run(run_dir) and time.monotonic() < end:
        time.sleep(0.05)
    wrong = []
    if left := of_run(run_dir):
        wrong.append(f"{len(left)} processes are left 10 s after the script's end")
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    if kind == "tool" and ((run_dir / "raw").is_dir() or any(run_dir.glob("events-*"))):
        with (
            mock.patch.dict(os.environ, TMPDIR=str(temporary)),
            mock.patch.object(tempfile, "tempdir", str(temporary)),
        ):
            recover(run_dir)
        if rest := list(temporary.glob("nsysalign-*")):
            wrong.append(f"{len(rest)} temporary folders are left after the next analyze")
    logs = [log.read_text() for log in run_dir.glob("events-*.jsonl")]
    pairs = sum(json.loads(line)["type"] == "elapsed" for log in logs for line in log.splitlines())
    if "Failed to connect to Agent" in err:  # nsys's library ended the script with 1
        return wrong
    expected = {"tool": None, "script": 137}.get(kind, STATUS)
    begun = "did not start the script" not in err
    if expected is not None and tool.returncode != expected and begun:
        wrong.append(f"status {tool.returncode} instead of {expected}: {err[-1500:]}")
    if kind not in ("script", "tool") and tool.returncode == STATUS and pairs != PAIRS:
        wrong.append(f"{pairs} of {PAIRS} pairs")
    if kind == "tool" and at_end and pairs != PAIRS:
        wrong.append(f"{pairs} of {PAIRS} pairs are recovered")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moments", type=int, default=60)
    parser.add_argument("--only", default=",".join(PROCESSES))
    given = parser.parse_args()
    count = 0
    for kind in given.only.split(","):
        killed, first = 0, given.moments * 2 // 3
        for number in range(given.moments):
            at_end, last = number >= first, given.moments - first
            step = (number - first + 0.5) / last if at_end else (number + 0.5) / first
            with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as folder:
                wrong = try_once(kind, SECONDS * step, Path(folder), at_end=at_end)
            killed += wrong is not None
            count += len(wrong or ())
            for text in wrong or ():
                where = "after the script's last line" if at_end else "of the run"
                print(f"{kind}, {SECONDS * step:.2f} s {where}: {text}", flush=True)
        print(f"{kind}: killed at {killed} of {given.moments} moments", flush=True)
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
