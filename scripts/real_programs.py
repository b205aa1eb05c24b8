"""Programs that others wrote, run plainly and under `nsysalign run`: is anything about them
different?

    python scripts/real_programs.py --list
    python scripts/real_programs.py                             # those that need no GPU and are installed
    python scripts/real_programs.py --cheap                     # of that, what takes seconds and needs nothing but Python
    python scripts/real_programs.py --gpu --from FOLDER -o real.json
    python scripts/real_programs.py --gpu --from FOLDER --dry-run   # anywhere: are all files there, do they compile?

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
import gzip
import importlib.util
import json
import os
import re
import shutil
import site
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
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
    return sum(
        line.get("type") == "elapsed" and line.get("ms") is not None and "calibration" not in line
        for line in _lines(run_dir)
    )


def _lines(run_dir: Path) -> list[dict[str, Any]]:
    texts = [path.read_text("utf-8") for path in run_dir.glob("events-*.jsonl")]
    texts += [
        gzip.decompress(path.read_bytes()).decode() for path in run_dir.glob("events-*.jsonl.gz")
    ]
    return [json.loads(line) for text in texts for line in text.splitlines()]


def evaluators_numbers(result: str) -> list[tuple[str, int, float]]:
    """(case, runs, mean in ns) per benchmark of gpu-mode's evaluator."""
    found = dict(re.findall(r"^(benchmark\.\d+\.\w+): (.*)$", result, re.M))
    count = int(
        dict(re.findall(r"^(benchmark-count): (\d+)$", result, re.M)).get("benchmark-count", 0)
    )
    return [
        (
            found[f"benchmark.{i}.spec"],
            int(found[f"benchmark.{i}.runs"]),
            float(found[f"benchmark.{i}.mean"]),
        )
        for i in range(count)
        if f"benchmark.{i}.mean" in found
    ]


def beside(result: str, plain: str, intervals: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The evaluator's own mean per case, plainly and under the tool, beside ours: the last
    intervals of all, case by case."""
    cases, plainly = evaluators_numbers(result), evaluators_numbers(plain)
    intervals = sorted(intervals, key=lambda interval: interval["start_ns"])
    at, rows = len(intervals) - sum(runs for _, runs, _ in cases), []
    for index, (spec, runs, mean) in enumerate(cases):
        ours = intervals[at : at + runs] if at >= 0 else []
        at += runs
        rows.append(
            {
                "case": spec, "runs": runs, "evaluator_us": mean / 1e3,
                "evaluator_plain_us": plainly[index][2] / 1e3 if index < len(plainly) else None,
                "ours_us": sum(i["elapsed_ns"] for i in ours) / len(ours) / 1e3 if ours else None,
                "kernel_us": sum(i["kernel_only_ns"] for i in ours) / len(ours) / 1e3 if ours else None,
            }
        )  # fmt: skip
    return rows


def compare(program: Program, folder: Path, fetched: Path | None, at_once: bool) -> dict[str, Any]:
    """Run it both ways, one after the other or both at the same time.  Nothing raises: what went
    wrong is in the answer."""
    run_dir = folder / "run"
    command = [*NSYSALIGN, "run", "-q", "-o", str(run_dir), "--"]
    with ThreadPoolExecutor(2 if at_once else 1) as pool:
        plainly = pool.submit(start, program, [], folder / "plain", fetched, program.seconds)
        traced = pool.submit(
            start, program, command, folder / "tool", fetched, 2 * program.seconds + 60
        )
        plain, tool = plainly.result(), traced.result()
    status, intervals, unaligned, notes = tool.status, [], [], []
    if (run_dir / "run.json").is_file():
        manifest = json.loads((run_dir / "run.json").read_text())
        status, notes = manifest["exit_status"], manifest["notes"]
    if (run_dir / "analysis.json").is_file():
        analysis = json.loads((run_dir / "analysis.json").read_text())
        intervals = [i for i in analysis["intervals"] if i["kind"] == "event"]
        unaligned = [u["reason"] for u in analysis["unaligned"]]
    answer = {
        "name": program.name,
        "command": program.command,
        "status": [plain.status, status],
        "output": likeness(plain.out, tool.out),
        "seconds": [round(plain.seconds, 1), round(tool.seconds, 1)],
        "pairs": pairs(run_dir) if run_dir.is_dir() else 0,
        "placed": len(intervals),
        "unaligned": dict(collections.Counter(unaligned)),
        "notes": notes,
    }
    if program.result_fd:
        answer["result"] = likeness(plain.result, tool.result)
        answer["cases"] = beside(tool.result, plain.result, intervals)
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


def dry_run(programs: list[Program], fetched: Path | None) -> int:
    """Compile everything that would run; how many programs lack a file or do not compile."""
    wrong = 0
    for program in programs:
        ours = re.findall(r"{real}/(\S+)", program.command)
        problems = [
            f"{name} is missing"
            for name in program.files
            if not (fetched and (fetched / name).is_file())
        ]
        for path in [REAL / name for name in ours] + [
            fetched / name for name in program.files if not problems
        ]:
            try:
                compile(path.read_text(), str(path), "exec")
            except (OSError, SyntaxError, ValueError) as error:
                problems.append(f"{path.name}: {error}")
        modules = [name for name in program.needs if importlib.util.find_spec(name) is None]
        print(f"{'wrong' if problems else 'ready'}  {program.name}  {'; '.join(problems)}", end="")
        print(f"  (not installed here: {', '.join(modules)})" if modules else "")
        wrong += bool(problems)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--gpu", action="store_true", help="the programs that need a GPU, only them"
    )
    parser.add_argument(
        "--cheap", action="store_true", help="only what takes seconds and needs nothing but Python"
    )
    parser.add_argument(
        "--only",
        metavar="TEXT",
        action="append",
        help="programs whose name contains TEXT; may come several times",
    )
    parser.add_argument(
        "--from", dest="fetched", type=Path, metavar="FOLDER", help="where the fetched code is"
    )
    parser.add_argument(
        "--budget", type=float, default=480, help="begin no program after so many seconds"
    )
    parser.add_argument("--jobs", type=int, default=1, help="so many programs at once")
    parser.add_argument(
        "--at-once",
        action="store_true",
        help="each program both ways at the same time: its own numbers mean nothing then",
    )
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the runs there")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("-o", "--output", type=Path, metavar="JSON")
    options = parser.parse_args()
    fetched = options.fetched.resolve() if options.fetched else None
    programs = [p for p in PROGRAMS if p.gpu == options.gpu and (p.cheap or not options.cheap)]
    programs = [
        p for p in programs if not options.only or any(text in p.name for text in options.only)
    ]
    if options.list:
        for program in PROGRAMS:
            print(f"{'GPU' if program.gpu else '   '}  {program.name}: {program.command}")
        return 0
    if options.dry_run:
        return min(1, dry_run(programs, fetched))
    began, answers = time.monotonic(), []
    with (
        tempfile.TemporaryDirectory(prefix="real-") as temporary,
        ThreadPoolExecutor(options.jobs) as pool,
    ):
        folder = (options.keep or Path(temporary)).resolve()

        def answer(number: int) -> dict[str, Any]:
            why = lacks(programs[number], fetched)
            if not why and time.monotonic() - began > options.budget:
                why = "no time left"
            if why:
                return {"name": programs[number].name, "skipped": why}
            return compare(programs[number], folder / f"{number:02d}", fetched, options.at_once)

        for done in as_completed([pool.submit(answer, number) for number in range(len(programs))]):
            answers.append(done.result())
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
