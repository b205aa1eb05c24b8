"""What each option of nsys costs an interval of 50 launches, and which rows and answers it takes away.

    python scripts/bench_options.py [--rounds 2] [--seconds 220] [--json OUT]       on a machine with a GPU: under 4 minutes

Options take turns, the plain program among them.  Beside each interval a fixed piece of work is timed, and only intervals count during which the host ran at its full speed: on shared hosts it halves for seconds at a time.  In the last round the probe is in the process, the report
is exported and analysed: rows per table, how many intervals are placed and how, how much of them is not known, and whether a time without
nsys is predicted.  Without a GPU the "launches" are a little work on the host: a dry run that shows the script works.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nsysalign.record.command import probe_environment
from nsysalign.record.convert import convert
from nsysalign.record.nsys import Nsys, export_sqlite, find_nsys, profile_arguments

ROOT = Path(__file__).resolve().parents[1]
PLAIN, DEFAULT = "without nsys", "as `run` does it"
REPEATS, LAUNCHES = 200, 50
TABLES = {
    "kernels": "CUPTI_ACTIVITY_KIND_KERNEL", "copies": "CUPTI_ACTIVITY_KIND_MEMCPY", "API calls": "CUPTI_ACTIVITY_KIND_RUNTIME",
    "waits": "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "event rows": "CUPTI_ACTIVITY_KIND_CUDA_EVENT",
    "graphs": "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "NVTX": "NVTX_EVENTS",
}  # fmt: skip


def child() -> None:
    """The workload; prints one JSON line: [ns, ns of a fixed piece of work] per interval."""

    def speed() -> int:
        """The fastest of three: the first warms the caches, an interrupt hits one of them."""
        took = []
        for _ in range(3):
            t0 = time.perf_counter_ns()
            sum(range(500))
            took.append(time.perf_counter_ns() - t0)
        return min(took)

    def plainly(count: int) -> None:
        for _ in range(count):
            sum(range(40))

    found, graphs = [], []
    try:
        import torch

        gpu = torch.cuda.is_available()
    except ImportError:
        gpu = False
    if not gpu:
        for _ in range(REPEATS):
            took = speed()
            t0 = time.perf_counter_ns()
            plainly(LAUNCHES)
            found.append([time.perf_counter_ns() - t0, took])
        print(json.dumps({"small": found, "graph": graphs, "gpu": None}))
        return
    x = torch.zeros(1024, device="cuda")
    captured = torch.cuda.CUDAGraph()
    x.add_(1)
    torch.cuda.synchronize()
    with torch.cuda.graph(captured):
        for _ in range(20):
            x.add_(1)
    for values, work in (
        (found, lambda: [x.add_(1) for _ in range(LAUNCHES)]),
        (graphs, captured.replay),
    ):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for number in range(REPEATS + 10):
            torch.cuda.synchronize()
            took = speed()
            start.record()
            work()
            end.record()
            end.synchronize()
            if number >= 10:
                values.append([start.elapsed_time(end) * 1e6, took])
    print(json.dumps({"small": found, "graph": graphs, "gpu": torch.cuda.get_device_name()}))


def variants(nsys: Nsys) -> dict[str, list[str] | None]:
    """Name -> arguments of nsys, up to the program; None: without nsys.  Only what this nsys knows."""
    base = profile_arguments(nsys, Path("OUT"))[0]
    said = subprocess.run(
        [nsys.path, "profile", "--help=trace"], capture_output=True, text=True, cwd="/"
    ).stdout
    said += subprocess.run(
        [nsys.path, "profile", "--help"], capture_output=True, text=True, cwd="/"
    ).stdout

    def traced(what: str) -> list[str]:
        return [what if a == "cuda,nvtx" else a for a in base]

    out: dict[str, list[str] | None] = {PLAIN: None, DEFAULT: base}
    out["-t cuda (no NVTX)"] = traced("cuda")
    out["-t nvtx (no CUDA)"] = traced("nvtx")
    if any(a.startswith("--trace-fork") for a in base):
        out["forked children not traced"] = [a for a in base if not a.startswith("--trace-fork")]
    for flag, value in (
        ("cuda-flush-interval", "100"), ("cuda-flush-interval", "10000"), ("cuda-graph-trace", "node"), ("cuda-event-trace", "true"),
        ("cuda-trace-all-apis", "false"), ("flush-on-cudaprofilerstop", "false"),
    ):  # fmt: skip
        if flag in nsys.flags:
            out[f"--{flag}={value}"] = [a for a in base if not a.startswith(f"--{flag}=")] + [
                f"--{flag}={value}"
            ]
    for name in ("cuda-hw", "cuda-sw"):
        if f"'{name}'" in said or f" {name}," in said:
            out[f"-t {name},nvtx"] = traced(f"{name},nvtx")
    return out


def once(arguments: list[str] | None, folder: Path, probe: bool) -> dict | str:
    """One process; its result, or what was said instead."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("NSYSALIGN_")}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [env.get("PYTHONPATH")])])
    if probe:
        (folder / "raw").mkdir()
        env = probe_environment(env, folder, calibrate=True)
    command = [str(folder / "trace") if a == "OUT" else a for a in arguments or []]
    try:
        done = subprocess.run(
            [*command, sys.executable, __file__, "--child"], env=env, capture_output=True, text=True, timeout=90,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "took more than 90 s"
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"small"')]
    return json.loads(lines[-1]) if lines else " ".join((done.stderr or done.stdout).split())[-200:]


def answers(nsys: Nsys, folder: Path) -> dict:
    """Rows of the report, and what the analysis makes of them."""
    import nsysalign

    report = next(
        (p for p in (folder / "trace.nsys-rep", folder / "trace.qdrep") if p.is_file()), None
    )
    if report is None:
        return {"problem": "no report"}
    sqlite = export_sqlite(nsys, report, folder / "trace.sqlite")
    with sqlite3.connect(sqlite) as connection:
        there = {
            name
            for (name,) in connection.execute("select name from sqlite_master where type = 'table'")
        }
        out: dict = {
            what: connection.execute(f'select count(*) from "{table}"').fetchone()[0]
            if table in there
            else 0
            for what, table in TABLES.items()
        }
    try:
        a = nsysalign.analyze(sqlite, convert(folder / "raw", folder, Path.cwd()))
        real = a.intervals[a.intervals["kind"] != "run"]
        unknown = a.parts[
            (a.parts["cause"] == "unknown") & a.parts["interval"].isin(real["interval"])
        ]["ns"].sum()
        out |= {
            "intervals": len(real), "unaligned": len(a.unaligned), "methods": real["method"].value_counts().to_dict(),
            "unknown %": round(100 * float(unknown) / max(int(real["elapsed_ns"].sum()), 1), 2),
            "predicted": int(a.unprofiled["predicted_ns"].notna().sum()),
        }  # fmt: skip
    except Exception as error:
        out["problem"] = f"{type(error).__name__}: {error}".splitlines()[0][:60]
    return out


def at_full_speed(results: list[dict], what: str, usual: float) -> tuple[float | None, int]:
    """Median, us, of the intervals of all processes during which the host was not slower than usual; how many they are."""
    kept = [ns for r in results for ns, took in r[what] if took <= 1.15 * usual]
    return (statistics.median(kept) / 1e3 if len(kept) >= 20 else None), len(kept)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--seconds", type=float, default=220, help="begin nothing more after this time"
    )
    parser.add_argument("--only", default=".", help="a regular expression for the options' names")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        return child()
    nsys, began = find_nsys(), time.monotonic()
    print(f"nsys {nsys.version}", flush=True)
    todo = {
        name: options for name, options in variants(nsys).items() if re.search(arguments.only, name)
    }
    found: dict[str, list[dict]] = {name: [] for name in todo}
    rows: dict[str, dict] = {}
    for number in range(arguments.rounds):
        last = number == arguments.rounds - 1
        order = list(todo.items())
        for name, options in order[number % len(order) :] + order[: number % len(order)]:
            if time.monotonic() - began > arguments.seconds:
                print(f"round {number + 1}: {name}: no time left", flush=True)
                continue
            with tempfile.TemporaryDirectory(prefix="nsysalign-") as folder:
                result = once(options, Path(folder), probe=last)
                if isinstance(result, str):
                    print(f"round {number + 1}: {name}: {result}", flush=True)
                    continue
                found[name].append(result)
                if last and options is not None:
                    rows[name] = answers(nsys, Path(folder))
            print(
                f"{time.monotonic() - began:4.0f} s: round {number + 1}: {name} {rows.get(name, '')}",
                flush=True,
            )
    readings = [took for results in found.values() for r in results for _, took in r["small"]]
    if not readings:
        sys.exit("nothing was measured")
    usual = statistics.quantiles(readings, n=4)[0]
    table = []
    for name, results in found.items():
        if results:
            small, count = at_full_speed(results, "small", usual)
            graph, _ = at_full_speed(results, "graph", usual)
            table.append(
                {"option": name, "small50_us": small, "graph_us": graph, "intervals": count}
            )
    plain = next((row["small50_us"] for row in table if row["option"] == PLAIN), None)
    print(
        f"\n{'50 launches, graph of 20 (us, host at full speed)':52s} {'us':>8s} {'more':>8s} {'graph':>8s} {'of':>6s}"
    )
    for row in table:
        small, graph = row["small50_us"], row["graph_us"]
        more = f"{small - plain:+8.1f}" if small and plain else f"{'.':>8s}"
        us = [f"{value:8.1f}" if value else f"{'.':>8s}" for value in (small, graph)]
        print(f"{row['option']:52s} {us[0]} {more} {us[1]} {row['intervals']:6d}")
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"nsys": nsys.version, "table": table, "answers": rows}, indent=1)
        )


if __name__ == "__main__":
    main()
