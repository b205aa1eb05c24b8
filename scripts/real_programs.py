"""Programs as people write them, run plainly and under `nsysalign run`: is anything different?

    python scripts/real_programs.py             # those whose modules are installed
    python scripts/real_programs.py --cheap     # what takes seconds and needs nothing but Python
    python scripts/real_programs.py --gpu       # their work on a GPU
    python scripts/real_programs.py --gpu --cases --recorder cupti --jobs 6    # and those of real/cases.py

For each: exit status and the form of its output (numbers taken out) both times, how many event
pairs it compared, and how many of them were placed on the trace.  Needs an nsys, or --recorder.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import re
import site
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

LONGEST_S = 120
REAL = Path(__file__).resolve().parent / "real"
#: Of this checkout, installed or not, whatever the working directory is.
NSYSALIGN = (
    sys.executable,
    "-c",
    f"import sys; sys.path.insert(0, {str(REAL.parents[1])!r}); from nsysalign.cli import main; main()",
)
TORCHRUN = "{python} -m torch.distributed.run --standalone --nproc-per-node 2 --max-restarts 3"


class Program(NamedTuple):
    """In `command` {python} is this Python, {real} the folder of our own programs.  `exact`: it
    prints the same each time, but for numbers of a GPU.  `status`: with which it ends."""

    name: str
    command: str
    needs: tuple[str, ...] = ()
    gpu: bool = True  # with --gpu it has work for one
    exact: bool = True
    status: int = 0


PROGRAMS = (
    Program("http.server stopped by SIGTERM", "{python} {real}/http_server.py", gpu=False),
    Program("spawn pool, Process.terminate", "{python} {real}/pools.py"),
    Program("two processes", "{python} {real}/two_processes.py"),
    Program("a Python by another name, behind links", "linked/bin/snake {real}/two_processes.py"),
    Program("DataLoader with workers", "{python} {real}/loader.py", ("torch",)),
    Program(
        "torchrun, elastic restart", f"{TORCHRUN} {{real}}/elastic.py", ("torch",), exact=False
    ),
    Program(
        "notebook by nbconvert",
        "{python} {real}/notebook.py",
        ("nbconvert", "nbformat", "ipykernel"),
        gpu=False,
    ),
)


def link_python(folder: Path) -> None:
    """An interpreter as conda and venv make them: another name, behind links, in a folder of its
    own, with our packages."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    packages = folder / "env" / "lib" / version / "site-packages"
    packages.mkdir(parents=True)
    (folder / "env" / "bin").mkdir()
    real = os.path.realpath(sys.executable)
    (folder / "env" / "bin" / "snake").symlink_to(real)
    (folder / "env" / "pyvenv.cfg").write_text(f"home = {os.path.dirname(real)}\n")
    lines = [f"import site; site.addsitedir({path!r})\n" for path in site.getsitepackages()]
    (packages / "ours.pth").write_text("".join(lines))
    (folder / "linked").symlink_to(folder / "env")


def form(text: str) -> list[str]:
    """The lines of an output without its numbers, in any order: ranks and workers print as they
    come."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    text = re.sub(r"[\d.,:+e-]*\d[\d.,:%]*", "N", text)
    text = re.sub(r"\b(ns|us|ms|s)\b|µs|[-=*]{3,}| +", " ", text)
    return sorted(" ".join(line.split()) for line in text.splitlines() if line.strip())


def cases() -> list[Program]:
    """Those of real/cases.py."""
    spec = importlib.util.spec_from_file_location("cases", REAL / "cases.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    command = "{python} {real}/cases.py "
    return [Program(n, command + n, status=module.status(n)) for n in module.CASES]


def compare(program: Program, folder: Path, gpu: bool, recorder: Sequence[str]) -> dict:
    """Run it both ways.  Nothing raises: what went wrong is in the answer."""
    try:
        return compared(program, folder, gpu, recorder)
    except subprocess.TimeoutExpired as error:
        how = "tool" if "run" in error.cmd else "plain"
        return {"name": program.name, "ok": False, "said": f"{how}: {error.timeout} s"}


def compared(program: Program, folder: Path, gpu: bool, recorder: Sequence[str]) -> dict:
    """The same.  Raises TimeoutExpired."""
    words = program.command.format(python=sys.executable, real=REAL).split() + ["--gpu"] * gpu
    env = {k: v for k, v in os.environ.items() if not k.startswith("NSYSALIGN_")}
    answer: dict = {"name": program.name, "seconds": []}
    statuses, texts = [], []
    run_dir = folder / "run"
    for how, prefix in (
        ("plain", ()),
        ("tool", (*NSYSALIGN, "run", "-q", *recorder, "-o", run_dir, "--")),
    ):
        (folder / how).mkdir(parents=True)
        link_python(folder / how)
        began = time.monotonic()
        # files, not pipes: what a program leaves behind must not keep us waiting
        with (folder / f"{how}.out").open("wb") as out, (folder / f"{how}.err").open("wb") as err:
            ended = subprocess.run(
                [*prefix, *words], cwd=folder / how, env=env, stdin=subprocess.DEVNULL,
                stdout=out, stderr=err, timeout=LONGEST_S,
            )  # fmt: skip
        answer["seconds"].append(round(time.monotonic() - began, 1))
        statuses.append(ended.returncode)
        texts.append((folder / f"{how}.out").read_text(errors="replace"))
    status, pairs, placed = statuses[1], 0, 0
    if (run_dir / "run.json").is_file():
        status = json.loads((run_dir / "run.json").read_text())["exit_status"]
    for log in run_dir.glob("events-*.jsonl"):
        lines = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
        pairs += sum(line["type"] == "elapsed" and line["ms"] is not None for line in lines)
    if (run_dir / "analysis.db").is_file():
        with contextlib.closing(sqlite3.connect(run_dir / "analysis.db")) as db:
            query = "select count(*) from intervals where kind = 'event'"
            placed = db.execute(query).fetchone()[0]
    same = texts[0] == texts[1] if program.exact else form(texts[0]) == form(texts[1])
    plainly = statuses[0] if statuses[0] >= 0 else 128 - statuses[0]
    answer |= {"status": [plainly, status], "same": same, "pairs": [pairs, placed]}
    whole = pairs <= placed or program.status > 128 or "kill" in program.name  # which loses its end
    answer["ok"] = same and plainly == status and (not gpu or whole)
    if plainly != program.status:  # something is missing here
        answer["expected"] = program.status
    if not answer["ok"]:
        names = ("plain.out", "plain.err", "tool.out", "tool.err")
        answer["said"] = [(folder / name).read_text(errors="replace")[-2000:] for name in names]
    return answer


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--cheap", action="store_true")
    parser.add_argument("--cases", action="store_true")
    parser.add_argument("--recorder", choices=["nsys", "cupti", "log"])
    parser.add_argument("--only", help="names, with commas between them")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    recorder = ("--recorder", options.recorder) if options.recorder else ()
    programs = [p for p in PROGRAMS if p.gpu or not options.gpu]
    runnable = []
    for program in (p for p in programs if not (options.cheap and p.needs)):
        needs = (*program.needs, "torch") if options.gpu else program.needs
        if missing := [name for name in needs if importlib.util.find_spec(name) is None]:
            print(f"{program.name}: not installed: {', '.join(missing)}", flush=True)
        else:
            runnable.append(program)
    if options.cases:
        runnable += cases()
    if options.only:
        runnable = [p for p in runnable if p.name in options.only.split(",")]
    answers = []
    with tempfile.TemporaryDirectory(prefix="real-") as temporary, ThreadPoolExecutor(options.jobs) as pool:  # fmt: skip
        started = [
            pool.submit(compare, program, Path(temporary, str(n)), options.gpu, recorder)
            for n, program in enumerate(runnable)
        ]
        for future in as_completed(started):
            answers.append(future.result())
            print(json.dumps(answers[-1]), flush=True)
    bad = [answer["name"] for answer in answers if not answer["ok"]]
    print(f"{len(answers)} run, {len(bad)} differ{': ' if bad else ''}{', '.join(bad)}")
    return min(1, len(bad))


if __name__ == "__main__":
    sys.exit(main())
