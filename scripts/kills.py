"""Kill one process of a run at any moment, and look at what is left.

    python scripts/kills.py [--moments 60] [--only tool,nsys,agent,launcher,holder,script] [--seconds 2]

Each process is killed with SIGKILL at so many moments over the first seconds of a run.  Ten seconds
after its end nothing of the run lives but a script that nobody killed, its status is right, no pair
is lost, and no temporary folder is left after the next `analyze`.  Prints what does not hold, and
exits with 1 then.
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

sys.path.insert(0, str(Path(__file__).parents[1]))
from nsysalign.record.processes import marked, of_run
from nsysalign.record.session import recover

PROCESSES = ("tool", "nsys", "agent", "launcher", "holder", "script")
FAKE_TORCH = Path(__file__).parents[1] / "tests" / "collect" / "faketorch"
SCRIPT = """
import time, torch
a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
for n in range(20):
    a.record(); b.record(); a.elapsed_time(b)
    time.sleep(0.05)
raise SystemExit(5)
"""
PAIRS, STATUS = 20, 5


def found(victim: str, tool: subprocess.Popen, run_dir: Path) -> int | None:
    """The process to be killed, None if it is not there (yet)."""
    if victim == "tool":
        return tool.pid
    if victim == "script":
        pids = marked(b"NSYSALIGN_DIR=" + os.fsencode(run_dir))
        return min(pids, default=None)
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
        if kinds[victim]:
            return pid
    return None


def try_once(victim: str, moment_s: float, folder: Path) -> list[str]:
    """What does not hold if this process is killed after so long; [] if it was not there."""
    (folder / "script.py").write_text(SCRIPT)
    run_dir = folder / "run"
    temporary = folder / "tmp"
    temporary.mkdir()
    path = os.pathsep.join([str(FAKE_TORCH), str(Path(__file__).parents[1])])
    env = {k: v for k, v in os.environ.items() if not k.startswith("NSYSALIGN")}
    env |= {"PYTHONPATH": path, "TMPDIR": str(temporary)}
    tool = subprocess.Popen(
        [sys.executable, "-m", "nsysalign", "run", "--no-calibrate", "-o", str(run_dir), "script.py"],
        cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    began = time.monotonic()
    time.sleep(moment_s)
    pid = None
    while pid is None and tool.poll() is None and time.monotonic() - began < moment_s + 0.5:
        pid = found(victim, tool, run_dir)
    if pid is None or tool.poll() is not None:
        tool.communicate()
        return []
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
    begun = (run_dir / "raw").is_dir() or any(run_dir.glob("events-*"))
    if victim == "tool" and begun:
        os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)
        recover(run_dir)
        if rest := list(temporary.glob("nsysalign-*")):
            wrong.append(f"{len(rest)} temporary folders are left after the next analyze")
    logs = [log.read_text() for log in run_dir.glob("events-*.jsonl")]
    pairs = sum(json.loads(line)["type"] == "elapsed" for log in logs for line in log.splitlines())
    if "Failed to connect to Agent" in err:  # nsys's library ended the script with 1
        return wrong
    expected = {"tool": None, "script": 137}.get(victim, STATUS)
    if (
        expected is not None
        and tool.returncode != expected
        and "did not start the script" not in err
    ):
        wrong.append(f"status {tool.returncode} instead of {expected}: {err[-1500:]}")
    if victim not in ("script", "tool") and tool.returncode == STATUS and pairs != PAIRS:
        wrong.append(f"{pairs} of {PAIRS} pairs")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moments", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--only", default=",".join(PROCESSES))
    given = parser.parse_args()
    count = 0
    for victim in given.only.split(","):
        for number in range(given.moments):
            moment_s = given.seconds * (number + 0.5) / given.moments
            with tempfile.TemporaryDirectory(dir="/tmp") as folder:
                wrong = try_once(victim, moment_s, Path(folder))
            count += len(wrong)
            for text in wrong:
                print(f"{victim} at {moment_s:.2f} s: {text}", flush=True)
        print(f"{victim}: {given.moments} moments", flush=True)
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
