"""Programs that a profiler easily kills, hangs or robs: each plainly, under plain `nsys profile`,
and under `nsysalign run`.

    python scripts/three_ways.py               # all, as a table
    python scripts/three_ways.py pool closed   # those whose names have one of these words

Prints a Markdown table: exit status, what the program printed (in the first column in full, then
only where it differs), and for ranges of NVTX how many of them are in the trace.  Needs an nsys and
no GPU: torch is the tests' stand-in.  A program that has not ended after 30 s hangs, and is ended.
`nvtx` of 0.2.12 or newer loses all ranges under nsys before 2024.4, plainly as well.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

from nsysalign.record.nsys import find_nsys

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 30
BEGIN = """
import contextlib, ctypes, multiprocessing, os, pty, signal, subprocess, sys, threading, time
import torch
with contextlib.suppress(ImportError):
    import nvtx
    nvtx.mark("begin")  # nsys's library is there from now on
def pair():
    a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    a.record(); b.record(); a.elapsed_time(b)
def say(*what): os.write(1, ("= " + " ".join(map(str, what)) + "\\n").encode())
def code(status): return os.waitstatus_to_exitcode(status)
def in_a_thread(function): thread = threading.Thread(target=function); thread.start(); thread.join()
pair()
"""
POOL = """
import multiprocessing, os, {module}
def work(n):
    {range}
    return n
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(3) as pool:
        os.write(1, f"= {{sum(pool.map(work, range(15), chunksize=1))}}\\n".encode())
"""
#: name -> a program, which says what it has to say in lines that begin with "= "
PROGRAMS = {
    "a child forked in a thread": """
def child():
    if not (pid := os.fork()): os._exit(3)
    say(code(os.waitpid(pid, 0)[1]))
in_a_thread(child)
""",
    "a terminal's child forked in a thread": """
def child():
    pid, descriptor = pty.fork()
    if not pid: os._exit(3)
    say(code(os.waitpid(pid, 0)[1]))
in_a_thread(child)
""",
    "preexec_fn in a thread": """
in_a_thread(lambda: say(subprocess.run(["true"], preexec_fn=os.getpid).returncode))
""",
    "a pool that replaces its workers": """
with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
    say(pool.map(abs, range(-4, 0), chunksize=1))
""",
    "all descriptors closed": """
out = os.dup2(1, 2000); os.closerange(3, 1000); os.write(out, b"= closed\\n"); sys.exit(4)
""",
    "closed in a loop, then a signal": """
for number in range(3, 1000):
    with contextlib.suppress(OSError): os.close(number)
time.sleep(0.2)
signal.signal(signal.SIGUSR1, lambda *_: say("USR1"))
sys.stderr = None; os.dup2(1, 2)
os.kill(os.getpid(), signal.SIGUSR1); time.sleep(0.1); sys.exit(4)
""",
    "ended by SIGTERM": "os.kill(os.getpid(), 15); time.sleep(5)\n",
    "ended by SIGSEGV": "ctypes.string_at(0)\n",
    "os._exit": "os._exit(7)\n",
    "KeyboardInterrupt": "raise KeyboardInterrupt\n",
    "SIGINT of its own": "os.kill(os.getpid(), 2); time.sleep(5)\n",
    "module trace": """
import trace
def function(): pair()
file = os.path.abspath(sys.argv[0])
tracer = trace.Trace(count=1, trace=0, ignoredirs=[sys.prefix, sys.base_prefix, os.path.dirname(torch.__file__)])
tracer.runfunc(function)
say(sorted({os.path.basename(name) for name, _ in tracer.results().counts if "nsysalign/" in name}))
""",
    "modules deleted": """
for name in [n for n in sys.modules if n not in ("sys", "builtins", "__main__")]: del sys.modules[name]
pair(); say("alive")
""",
    "builtins replaced": """
import builtins
real, builtins.open = builtins.open, None
os.open = os.listdir = os.readlink = None
pair(); say("alive")
""",
    "an orphan is waited for": """
with open("orphan.py", "w") as file: file.write("import time; time.sleep(0.5)")
first = subprocess.run([sys.executable, "-c", "import subprocess, sys\\n"
    "print(subprocess.Popen([sys.executable, 'orphan.py'], stdout=subprocess.DEVNULL).pid)"], stdout=-1)
pid, until = int(first.stdout), time.time() + 5
while os.path.exists(f"/proc/{pid}") and time.time() < until: time.sleep(0.05)
say("ended" if time.time() < until else "never ends")
""",
    "inherited descriptors, its own group": """
say(os.environ.get("PIPE") in os.listdir("/proc/self/fd"), os.getpgrp() == os.getpid(), oct(os.umask(0)))
""",
}


def ranges(folder: Path) -> str:
    """How many of a pool's 15 ranges the trace has."""
    for trace in folder.rglob("trace.sqlite"):
        with contextlib.suppress(sqlite3.Error):
            found = sqlite3.connect(trace).execute(
                "SELECT count(*) FROM NVTX_EVENTS LEFT JOIN StringIds ON id = textId "
                "WHERE coalesce(text, value) LIKE 'work %'"
            )
            return f", {found.fetchone()[0]} of 15 ranges"
        return ", 0 of 15 ranges"
    return ""


def once(text: str, before: list[str], pool: bool) -> str:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "program.py").write_text(text)
        reader, writer = os.pipe()
        path = os.pathsep.join([str(ROOT / "tests/collect/faketorch"), str(ROOT)])
        path = os.pathsep.join(filter(None, [path, os.environ.get("PYTHONPATH")]))
        process = subprocess.Popen(
            [*before, sys.executable, "program.py"], cwd=folder, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=[writer],
            env=os.environ | {"PYTHONPATH": path, "PIPE": str(writer), "TMPDIR": temporary},
        )  # fmt: skip
        hangs = ""
        try:
            out, err = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            hangs = "**hangs**, "
            for entry in Path("/proc").glob("[0-9]*"):  # those of this program, wherever they are
                with contextlib.suppress(OSError):
                    if temporary.encode() in (entry / "environ").read_bytes():
                        os.kill(int(entry.name), signal.SIGKILL)
            out, err = process.communicate()
        os.close(reader)
        os.close(writer)
        said = "; ".join(re.findall(r"^= (.*)$", out.decode(errors="replace"), re.MULTILINE))
        status = process.returncode if process.returncode >= 0 else 128 - process.returncode
        for manifest in folder.glob("out/run.json"):  # 4 is ours: no CUDA work
            status = json.loads(manifest.read_text())["exit_status"]
        warned = " and a warning" if b"wakeup" in out + err else ""
        return f"{hangs}{status}, {said or '-'}{warned}" + (ranges(folder) if pool else "")


def main() -> None:
    nsys, wanted = find_nsys().path, sys.argv[1:]
    profile = [nsys, "profile", "-o", "trace", "--export", "sqlite"]
    forks = [*profile, "--trace-fork-before-exec=true"]
    ours = [sys.executable, "-m", "nsysalign", "run", "-q", "-o", "out"]
    every = {name: BEGIN + text for name, text in PROGRAMS.items()}
    with contextlib.suppress(ImportError):
        import nvtx  # noqa: F401

        range_ = 'with nvtx.annotate(f"work {n}"): pass'
        every["NVTX in a pool"] = POOL.format(module="nvtx", range=range_)
    print(
        "| program | plainly | nsys profile | with forked children | nsysalign run |\n|---|---|---|---|---|"
    )
    for name, text in every.items():
        if wanted and not any(word in name for word in wanted):
            continue
        row = [once(text, way, "NVTX" in name) for way in ([], profile, forks, ours)]
        row[1:] = ["same" if cell == row[0] else cell for cell in row[1:]]
        print(f"| {name} | {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
