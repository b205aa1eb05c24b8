"""Programs that others wrote, run plainly and under `nsysalign run`: is anything about them
different?

    python scripts/real_programs.py             # those that need no GPU and are installed
    python scripts/real_programs.py --cheap     # of that, what takes seconds and needs nothing but Python
    python scripts/real_programs.py --gpu --from FOLDER -o real.json

For each program: its exit status and the form of its output (numbers taken out) both times, how
many event pairs it compared, and how many of them were placed on the trace.  FOLDER holds other
people's code, which is fetched and never committed: gpu-mode/reference-kernels (f83cb92a),
ScalingIntelligence/KernelBench (423217d9), flashinfer-ai/flashinfer (fb28d724), the tutorials of
triton-lang/triton.  Needs what nsysalign needs in this Python, and an nsys.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import importlib.util
import json
import os
import re
import shutil
import site
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REAL = Path(__file__).resolve().parent / "real"
#: Of this checkout, installed or not, whatever the working directory is.
NSYSALIGN = (
    sys.executable,
    "-c",
    f"import sys; sys.path.insert(0, {str(REAL.parents[1])!r}); from nsysalign.cli import main; main()",
)


@dataclass(frozen=True)
class Program:
    """One program.  In `command` {python} is this Python, {real} the folder of our own drivers,
    {from} that of the fetched code; `copy` names a folder there that becomes the working directory.
    `result_fd`: the variable that names a pipe on which the program reports.
    """

    name: str
    command: str
    needs: tuple[str, ...] = ()  # modules
    files: tuple[str, ...] = ()  # in the folder of fetched code
    gpu: bool = False
    cheap: bool = False
    seconds: float = 60  # at most, plainly; twice as long under the tool
    copy: str = ""
    write: dict[str, str] = field(default_factory=dict)
    result_fd: str = ""
    exact: bool = True  # prints the same each time, to the letter
    prepare: Callable[[Path], None] | None = None


def _copied_python(folder: Path) -> None:
    """Interpreters as conda and venv make them: another name, behind links, in a folder of its own,
    with our packages."""
    (folder / "env" / "bin").mkdir(parents=True)
    (folder / "env" / "bin" / "snake").symlink_to(os.path.realpath(sys.executable))
    (folder / "env" / "pyvenv.cfg").write_text(
        f"home = {os.path.dirname(os.path.realpath(sys.executable))}\n"
    )
    packages = (
        folder
        / "env"
        / "lib"
        / f"python{sys.version_info[0]}.{sys.version_info[1]}"
        / "site-packages"
    )
    packages.mkdir(parents=True)
    lines = [f"import site; site.addsitedir({path!r})\n" for path in site.getsitepackages()]
    (packages / "ours.pth").write_text("".join(lines))
    (folder / "linked").symlink_to(folder / "env")


def _task(*sizes: int) -> dict[str, str]:
    return {"cases.txt": "".join(f"size: {size}; seed: 4242\n" for size in sizes)}


def _evaluator(problem: str, mode: str, *sizes: int) -> Program:
    folder = f"reference-kernels/{problem}"
    return Program(
        f"gpu-mode evaluator, {problem}, {mode}", f"{{python}} eval.py {mode} cases.txt", ("torch",),
        tuple(f"{folder}/{name}.py" for name in ("eval", "utils", "task", "reference", "submission")),
        gpu=True, seconds=60, copy=folder, write=_task(*sizes), result_fd="POPCORN_FD",
    )  # fmt: skip


def _tutorial(name: str, seconds: float) -> Program:
    return Program(
        f"triton tutorial {name}", f"{{python}} {{real}}/triton_tutorial.py {{from}}/triton/{name}.py",
        ("torch", "triton"), (f"triton/{name}.py",), gpu=True, seconds=seconds, exact=False,
    )  # fmt: skip


PROGRAMS = (
    Program("http.server stopped by SIGTERM", "{python} {real}/http_server.py", cheap=True),
    Program("spawn pool, Process.terminate", "{python} {real}/pools.py", cheap=True),
    Program("two processes", "{python} {real}/two_processes.py", cheap=True),
    Program(
        "an interpreter by another name, behind links", "linked/bin/snake {real}/two_processes.py",
        cheap=True, prepare=_copied_python,
    ),
    Program("torch.utils.benchmark", "{python} {real}/torch_timer.py", ("torch",), exact=False),
    Program("DataLoader with workers", "{python} {real}/loader.py", ("torch",)),
    Program(
        "torchrun, elastic restart (gloo)",
        "{python} -m torch.distributed.run --standalone --nproc-per-node 2 --max-restarts 3 {real}/elastic.py", ("torch",), exact=False, seconds=120,
    ),
    Program(
        "pytest-benchmark", "{python} -m pytest -q -p no:cacheprovider {real}/bench_test.py", ("pytest", "pytest_benchmark"), exact=False
    ),
    Program("notebook by nbconvert", "{python} {real}/notebook.py", ("nbconvert", "nbformat", "ipykernel")),
    Program("FastAPI under uvicorn, stopped by SIGTERM", "{python} {real}/fastapi_server.py", ("fastapi", "uvicorn")),
    Program("uv run", "{python} -m uv run --no-project --offline --python {python} {real}/two_processes.py", ("uv",)),
    Program(
        "accelerate launch", "{python} -m accelerate.commands.launch --cpu --num_processes 2 {real}/accelerated.py", ("accelerate",), exact=False
    ),
    Program("Lightning", "{python} {real}/lightning_fit.py", ("lightning",)),
    _evaluator("vectoradd_py", "benchmark", 1024, 2048, 4096),
    _evaluator("vectoradd_py", "leaderboard", 1024, 2048),
    _evaluator("grayscale_py", "benchmark", 512, 1024, 2048),
    _evaluator("grayscale_py", "test", 128, 256),
    Program("KernelBench's timing", "{python} {real}/kernelbench.py {from}/kernelbench", ("torch", "triton"), ("kernelbench/timing.py",), gpu=True),
    Program(
        "FlashInfer's bench_gpu_time", "{python} {real}/flashinfer_bench.py {from}/flashinfer", ("torch",),
        ("flashinfer/flashinfer/testing/utils.py",), gpu=True,
    ),
    _tutorial("01-vector-add", 60),
    _tutorial("02-fused-softmax", 60),
    _tutorial("05-layer-norm", 60),
    _tutorial("03-matrix-multiplication", 120),
    Program("transformers' generate and pipeline", "{python} {real}/generate.py", ("torch", "transformers"), gpu=True),
    Program("spawn pool, Process.terminate, on the GPU", "{python} {real}/pools.py --gpu", ("torch",), gpu=True),
    Program("two processes that share the GPU", "{python} {real}/two_processes.py --gpu", ("torch",), gpu=True),
    Program(
        "torchrun, elastic restart, on the GPU",
        "{python} -m torch.distributed.run --standalone --nproc-per-node 2 --max-restarts 3 {real}/elastic.py --gpu",
        ("torch",), gpu=True, exact=False, seconds=120,
    ),
    Program(
        "pytest-benchmark on the GPU", "{python} -m pytest -q -p no:cacheprovider {real}/gpu_bench_test.py",
        ("torch", "pytest", "pytest_benchmark"), gpu=True, exact=False,
    ),
    Program(
        "FastAPI under uvicorn on the GPU, stopped by SIGTERM", "{python} {real}/fastapi_server.py --gpu",
        ("torch", "fastapi", "uvicorn"), gpu=True,
    ),
    Program(
        "accelerate launch on the GPU", "{python} -m accelerate.commands.launch --num_processes 1 {real}/accelerated.py --gpu",
        ("torch", "accelerate"), gpu=True, exact=False,
    ),
    Program("Lightning on the GPU", "{python} {real}/lightning_fit.py --gpu", ("torch", "lightning"), gpu=True),
    Program(
        "an interpreter by another name, behind links, on the GPU", "linked/bin/snake {real}/two_processes.py --gpu",
        ("torch",), gpu=True, prepare=_copied_python,
    ),
    Program("torch.utils.benchmark on the GPU", "{python} {real}/torch_timer.py --gpu", ("torch",), gpu=True, exact=False),
    Program("DataLoader with workers, pinned", "{python} {real}/loader.py --gpu", ("torch",), gpu=True),
)  # fmt: skip


def form(text: str) -> list[str]:
    """The lines of an output without its numbers, in any order: ranks and workers print as they
    come."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    text = re.sub(r"[\d.,:+e-]*\d[\d.,:%]*", "N", text)
    text = re.sub(r"\b(ns|us|ms|s|Kops/s|Mops/s)\b|µs|[-=*]{3,}| +", " ", text)
    return sorted(" ".join(line.split()) for line in text.splitlines() if line.strip())


def likeness(one: str, other: str) -> str:
    if one == other:
        return "identical"
    return "same form" if form(one) == form(other) else "differs"


@dataclass
class Ran:
    """One run of a program."""

    status: int | None
    seconds: float
    out: str
    err: str
    result: str


def start(
    program: Program, prefix: list[str], folder: Path, fetched: Path | None, limit: float
) -> Ran:
    """Run it in a new folder; status None where it took longer than `limit`."""
    if program.copy:
        shutil.copytree(fetched / program.copy, folder)
    else:
        folder.mkdir(parents=True)
    for name, text in program.write.items():
        (folder / name).write_text(text)
    if program.prepare:
        program.prepare(folder)
    words = [
        word.format(python=sys.executable, real=REAL, **{"from": fetched})
        for word in program.command.split()
    ]
    reads, writes = os.pipe() if program.result_fd else (None, None)
    env = {k: v for k, v in os.environ.items() if not k.startswith("NSYSALIGN_")}
    if writes is not None:
        env[program.result_fd] = str(writes)
    began = time.monotonic()
    out, err = folder.with_suffix(".out"), folder.with_suffix(".err")
    with open(out, "w") as stdout, open(err, "w") as stderr:
        process = subprocess.Popen(
            [*prefix, *words], cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
            pass_fds=() if writes is None else (writes,), start_new_session=True,
        )  # fmt: skip
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            status = None
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    result = ""
    if writes is not None:
        os.close(writes)
        os.set_blocking(reads, False)
        with contextlib.suppress(
            BlockingIOError
        ):  # somebody of a run that was stopped still holds the other end
            result = os.read(reads, 1 << 20).decode(errors="replace")
        os.close(reads)
    return Ran(
        status,
        time.monotonic() - began,
        out.read_text(errors="replace"),
        err.read_text(errors="replace"),
        result,
    )


def pairs(run_dir: Path) -> int:
    """Successful comparisons of two events in the event logs, without the tool's own."""
    texts = [path.read_text("utf-8") for path in run_dir.glob("events-*.jsonl")]
    lines = [json.loads(line) for text in texts for line in text.splitlines()]
    return sum(line["type"] == "elapsed" and line["ms"] is not None for line in lines)


def compare(program: Program, folder: Path, fetched: Path | None) -> dict[str, Any]:
    """Run it both ways.  Nothing raises: what went wrong is in the answer."""
    run_dir = folder / "run"
    command = [*NSYSALIGN, "run", "-q", "-o", str(run_dir), "--"]
    plain = start(program, [], folder / "plain", fetched, program.seconds)
    tool = start(program, command, folder / "tool", fetched, 2 * program.seconds + 60)
    status, placed, unaligned, notes = tool.status, 0, [], []
    if (run_dir / "run.json").is_file():
        manifest = json.loads((run_dir / "run.json").read_text())
        status, notes = manifest["exit_status"], manifest["notes"]
    if (run_dir / "analysis.db").is_file():
        with contextlib.closing(sqlite3.connect(run_dir / "analysis.db")) as db:
            of_events = "select count(*) from intervals where kind = 'event'"
            placed = db.execute(of_events).fetchone()[0]
            unaligned = [reason for (reason,) in db.execute("select reason from unaligned")]
    answer = {
        "name": program.name,
        "command": program.command,
        "status": [plain.status, status],
        "output": likeness(plain.out, tool.out),
        "seconds": [round(plain.seconds, 1), round(tool.seconds, 1)],
        "pairs": pairs(run_dir) if run_dir.is_dir() else 0,
        "placed": placed,
        "unaligned": dict(collections.Counter(unaligned)),
        "notes": notes,
    }
    if program.result_fd:
        answer["result"] = likeness(plain.result, tool.result)
    answer["ok"] = (
        plain.status == status == 0
        and answer["output"] in (("identical",) if program.exact else ("identical", "same form"))
        and answer.get("result") != "differs"
        and (not program.gpu or answer["placed"] == answer["pairs"])
    )
    if not answer["ok"]:
        answer["said"] = [
            text[-2000:]
            for text in (plain.out, plain.err, tool.out, tool.err, plain.result, tool.result)
        ]
    return answer


def lacks(program: Program, fetched: Path | None) -> str:
    """Why it cannot be run here, "" where it can."""
    missing = [name for name in program.needs if importlib.util.find_spec(name) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    if program.files and fetched is None:
        return "needs fetched code: --from FOLDER"
    missing = [name for name in program.files if not (fetched / name).is_file()]
    return f"not in {fetched}: {', '.join(missing)}" if missing else ""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpu", action="store_true", help="those that need a GPU, only them")
    parser.add_argument("--cheap", action="store_true")
    parser.add_argument("--only", metavar="TEXT", default="", help="whose names contain TEXT")
    parser.add_argument("--from", dest="fetched", type=Path, metavar="FOLDER")
    parser.add_argument("-o", "--output", type=Path, metavar="JSON")
    options = parser.parse_args()
    fetched = options.fetched and options.fetched.resolve()
    programs = [p for p in PROGRAMS if p.gpu == options.gpu and (p.cheap or not options.cheap)]
    answers = []
    with tempfile.TemporaryDirectory(prefix="real-") as temporary:
        for program in (p for p in programs if options.only in p.name):
            if why := lacks(program, fetched):
                answers.append({"name": program.name, "skipped": why})
            else:
                answers.append(compare(program, Path(temporary, str(len(answers))), fetched))
            print(json.dumps({k: v for k, v in answers[-1].items() if k != "command"}), flush=True)
            if options.output:  # after each: a machine that is taken away leaves what was done
                options.output.write_text(json.dumps(answers, indent=1))
    bad = [answer["name"] for answer in answers if not answer.get("ok", True)]
    done = sum("ok" in answer for answer in answers)
    print(
        f"{done} run, {len(answers) - done} skipped, {len(bad)} differ{': ' if bad else ''}{', '.join(bad)}"
    )
    return min(1, len(bad))


if __name__ == "__main__":
    sys.exit(main())
