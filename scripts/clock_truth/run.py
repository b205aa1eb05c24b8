"""Recordings on a real GPU: what alignment is scored against, made in one go.

    PYTHONPATH=. python scripts/clock_truth/run.py OUT [--set a|b|c|ddp] [--nsys PATH] [--limit SECONDS] [--only A,B]
                                                       [--keep MIB]

Every program runs twice, each time with the probe: under CUPTI with event timestamps (the truth), and under nsys in the
default mode.  nsys is --nsys, else $NSYS, else the one in PATH.  OUT/truth-SET and OUT/nsys-SET get NAME.sqlite.xz and
NAME.events.jsonl.xz per program (NAME-1, NAME-2 ... where it has several processes).  One program has the GPU at a time; exports and
analyses go on beside the next.  What fails is printed and left out; log-SET.txt is what was printed.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import gzip
import json
import lzma
import os
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from nsysalign.errors import NsysError
from nsysalign.record.command import probe_environment
from nsysalign.record.convert import convert, errors
from nsysalign.record.nsys import find_nsys
from nsysalign.record.without_nsys import baseline_logs
from nsysalign.rundir import event_logs

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
#: What `nsysalign run` may take beyond the program's own time: nsys's report, the export, the analysis, waiting.
AFTER_S = 200


@dataclass(frozen=True)
class Program:
    """One program: its name in the archives, its command (after python), how long it may take, in seconds, and whether
    `nsysalign run` runs it once more without nsys."""

    name: str
    command: tuple[str, ...]
    seconds: int = 60
    baseline: bool = False


def own(name: str, *arguments: str, seconds: int = 60, baseline: bool = False) -> Program:
    path = HERE / "programs" / f"{name}.py"
    return Program(name, (str(path.relative_to(ROOT)), *arguments), seconds, baseline)


def random_program(seed: int) -> Program:
    return Program(f"random_{seed}", ("scripts/random_program.py", str(seed), "150"))


LINEARS = Program("linears_h2d", ("scripts/puzzles/linears_h2d.py",))
SITUATIONS = (
    "three_only", "priorities", "threads", "behind_copies", "contended", "graph_events", "graph_next", "do_bench",
    "cold_calls", "chain", "since_start", "two_streams", "negative", "reused_pair", "graph_loop", "forked",
    "effnet_copy",
)  # fmt: skip
#: In order of value: --limit cuts at the end.  Nothing was ever set with the seeds of `b` and `c` in view.
SETS: dict[str, tuple[Program, ...]] = {
    "a": (
        own("positions", baseline=True), own("thirty", seconds=90), own("decode"), own("prefetch"), LINEARS, random_program(101),
        *(own(name) for name in SITUATIONS),
        random_program(202), random_program(303), own("end_of_training", seconds=60),
    ),
    "b": (
        own("positions", baseline=True), own("thirty", seconds=90), own("decode", "11"), own("prefetch", "11"), LINEARS, random_program(707),
        *(own(name) for name in SITUATIONS),
        random_program(808), random_program(909),
    ),
    "c": (
        own("positions", baseline=True), own("decode", "12"), own("prefetch", "12"), random_program(1010), LINEARS,
        *(own(name) for name in SITUATIONS),
        own("thirty", seconds=90), random_program(1111),
    ),
    "ddp": tuple(
        Program(
            name,
            ("-m", "torch.distributed.run", "--nproc-per-node", "2", path),
            120,
        )
        for name, path in (
            ("ddp_train", "scripts/clock_truth/programs/ddp_train.py"),
            ("ddp", "scripts/puzzles/ddp.py"),
        )
    ),
}  # fmt: skip
#: Mostly asleep: beside all the others.
ASLEEP = {
    "a": own("pauses", seconds=90),
    "b": own("pauses", "3", seconds=60),
    "c": own("pauses", "4", seconds=60),
}


class Session:
    """What all runs share: the machine's tools, the GPU's lock, the deadline and the archives."""

    def __init__(self, asked: argparse.Namespace, work: Path) -> None:
        self.work, self.set = work, asked.set
        self.out: Path = asked.out
        self.lock = work / "gpu.lock"
        self.begin, self.limit_s = time.monotonic(), asked.limit
        self.nsys = usable(unpacked(asked.nsys, work))
        self.devices = gpu_names()
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(
                [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
            ),
            "PYTHONUNBUFFERED": "1",
        }
        if self.nsys:
            self.environment["NSYS"] = self.nsys
        self.truth, self.default = (
            Archive(self.out / f"{how}-{self.set}") for how in ("truth", "nsys")
        )
        self.library = build_library(work, asked.cuda)
        self._print = threading.Lock()

    def say(self, text: str) -> None:
        line = f"[{time.monotonic() - self.begin:5.0f} s] {text}"
        with self._print, open(self.out / f"log-{self.set}.txt", "a") as log:
            print(line, flush=True)
            print(line, file=log)

    @property
    def over(self) -> bool:
        return time.monotonic() - self.begin > self.limit_s

    def alone(self, program: Program, *, beside: bool = False) -> list[str]:
        """The command that waits for the GPU, runs the program there and gives up after its time.  `beside`: without
        waiting."""
        if program.command[0] != "-m":
            how = "beside" if beside else "alone"
            gate = [str(HERE / "gate.py"), str(self.lock), str(program.seconds), how]
            return [sys.executable, *gate, *program.command]
        wait = ["flock", str(self.lock), "timeout", "-k", "5", str(program.seconds)]
        return [*wait, sys.executable, *program.command]

    def folder(self, kind: str, program: Program) -> Path:
        path = self.work / f"{kind}-{program.name}"
        path.mkdir()
        return path


class Archive:
    """A folder of compressed files, written as they come."""

    left = sys.maxsize  # bytes that all archives together may still take
    lock = threading.Lock()

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, name: str, data: bytes) -> int:
        """Compress and keep; the compressed size, 0 where there is no room left."""
        packed = lzma.compress(data, preset=6)
        with Archive.lock:
            if len(packed) > Archive.left:
                print(f"{name}: {len(packed) >> 10} KiB, more than --keep leaves: left out")
                return 0
            Archive.left -= len(packed)
        (self.folder / f"{name}.xz").write_bytes(packed)
        return len(packed)


# --- the machine --------------------------------------------------------------------------------------------------


def unpacked(nsys: str | None, work: Path) -> str | None:
    """The nsys to use: a program, or the one in an archive made by bundle-nsys."""
    if nsys and ".tar" in Path(nsys).name:
        target = work / "nsys"
        target.mkdir()
        subprocess.run(["tar", "xf", nsys, "-C", str(target)], check=True)
        return str(target / "target-linux-x64" / "nsys")
    return nsys


def usable(nsys: str | None) -> str | None:
    """The path of an nsys that works; None, and why, where there is none."""
    try:
        found = find_nsys(nsys)
    except NsysError as error:
        print(f"nothing under nsys: {error}")
        return None
    print(f"nsys {found.version}")
    return found.path


def gpu_names() -> list[str]:
    with contextlib.suppress(OSError):
        asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        return subprocess.run(asked, capture_output=True, text=True).stdout.split("\n")[:-1]
    return []


def build_library(work: Path, more: Path | None) -> Path | None:
    """cupti_truth.cpp as a shared library; None, and why, where it cannot be built."""
    roots = [more] if more else []
    with contextlib.suppress(ImportError):
        import nvidia

        roots += [Path(p) for p in nvidia.__path__]
    roots += sorted(Path("/usr/local").glob("cuda*"))

    def find(pattern: str, *, beyond: Sequence[Path] = ()) -> Path | None:
        return next((p for root in [*roots, *beyond] for p in sorted(root.rglob(pattern))), None)

    found = [
        find("cupti.h"),
        find("cuda.h"),
        find("crt/host_defines.h", beyond=[Path("/usr"), Path("/opt")]),
    ]
    library, out = find("libcupti.so.13*"), work / "libcupti_truth.so"
    if None in (*found, library):
        print("no truth: cupti.h, cuda.h, crt/host_defines.h, libcupti.so.13:", *found, library)
        return None
    folders = dict.fromkeys([found[0].parent, found[1].parent, found[2].parents[1]])
    done = subprocess.run(
        ["g++", "-O2", "-shared", "-fPIC", *(f"-I{f}" for f in folders), "-o", str(out), str(HERE / "cupti_truth.cpp"),
         str(library), f"-Wl,-rpath,{library.parent}"],
        capture_output=True,
        text=True,
    )  # fmt: skip
    if done.returncode:
        print("no truth: the library does not compile:", done.stderr[-2000:])
        return None
    return out


#: What runs now, each the leader of its own group.
RUNNING: set[int] = set()


def end_all(*_: object) -> None:
    """What was started must not have the GPU when this process is stopped."""
    for how in (
        signal.SIGTERM,
        signal.SIGKILL,
    ):  # nsys and its programs have groups of their own: first politely
        for group in list(RUNNING):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, how)
        time.sleep(3)
    os._exit(128 + signal.SIGTERM)


def run(
    command: Sequence[str], environment: Mapping[str, str], seconds: float
) -> tuple[int | None, str]:
    """Exit status (None: stopped after `seconds`) and the last words of a command in the checkout."""
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            command, env=environment, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=said, stderr=said,
            start_new_session=True,
        )  # fmt: skip
        RUNNING.add(process.pid)
        try:
            status: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            status = None
            for how in (signal.SIGTERM, signal.SIGKILL):  # its own group only
                with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                    os.killpg(process.pid, how)
                    process.wait(20)
        finally:
            RUNNING.discard(process.pid)
        said.seek(0)
        return status, said.read()


def last_words(text: str, count: int = 3) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(lines[-count:])[-600:] or "it said nothing"


# --- the two ways of running a program ----------------------------------------------------------------------------


def record_truth(session: Session, program: Program, beside: bool = False) -> Callable[[], None]:
    """Run a program under CUPTI with event timestamps; what is left to do once the GPU is free again."""
    folder = session.folder("truth", program)
    (folder / "raw").mkdir()
    environment = probe_environment(session.environment, folder, calibrate=True) | {
        "CUPTI_TRUTH_OUT": str(folder / "%p.tsv"),
        "CUDA_INJECTION64_PATH": str(session.library),
    }
    status, said = run(
        session.alone(program, beside=beside), environment, program.seconds + AFTER_S
    )
    if status:
        session.say(f"truth {program.name}: exit status {status}: {last_words(said)}")
    return lambda: keep_truth(session, program, folder)


def keep_truth(session: Session, program: Program, folder: Path) -> None:
    """Convert what the library and the probe left, and put it into the archive; one line per program."""
    logs = {
        int(p.name.split(".")[0].removeprefix("events-")): p
        for p in convert(folder / "raw", folder, ROOT)
    }
    recordings = {int(p.stem): p for p in folder.glob("*.tsv")}
    both = sorted(logs.keys() & recordings.keys())
    told = [f"the probe: {text.splitlines()[-1]}" for text in errors(folder / "raw") if text]
    for number, pid in enumerate(both, start=1):
        name = program.name if len(both) == 1 else f"{program.name}-{number}"
        export = folder / f"{pid}.sqlite"
        stamped, records = to_export(recordings[pid], export, session.devices)
        events = plain(logs[pid])
        size = session.truth.add(f"{name}.sqlite", export.read_bytes()) + session.truth.add(
            f"{name}.events.jsonl", events
        )
        pairs, clocked = events.count(b'"type":"elapsed"'), events.count(b'"reference":')
        told.append(
            f"{pairs} pairs, {clocked} with a reference, {stamped} of {records} event rows stamped, {size >> 10} KiB"
        )
    if logs.keys() != recordings.keys():
        told.append(f"logs of {sorted(logs)}, recordings of {sorted(recordings)}")
    session.say(f"truth {program.name}: " + "; ".join(told or ["nothing"]))


def to_export(recording: Path, export: Path, devices: Sequence[str]) -> tuple[int, int]:
    """scripts/truth_to_sqlite.py, then the threads' own ids and the GPUs' names; (stamped events, all events)."""
    subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "truth_to_sqlite.py"), str(recording), str(export)],
        check=True,
        capture_output=True,
    )
    threads = {}
    with open(recording, errors="replace") as lines:
        for line in lines:
            fields = line.split("\t")
            if fields[0] in ("RUNTIME", "DRIVER") and len(fields) >= 6:
                threads[int(fields[5])] = int(fields[4])  # correlation id -> the system's thread id
    table = "CUPTI_ACTIVITY_KIND_RUNTIME"
    with contextlib.closing(sqlite3.connect(export)) as c:
        c.execute("create temp table real (id integer primary key, tid integer)")
        c.executemany("insert into real values (?, ?)", threads.items())
        c.execute(
            f"update {table} set globalTid = globalTid - globalTid % 16777216 + "
            "(select tid from real where id = correlationId)"
        )
        if devices:
            c.execute("delete from TARGET_INFO_GPU")
            c.executemany("insert into TARGET_INFO_GPU values (?, ?)", enumerate(devices))
        c.commit()
        return c.execute(
            "select coalesce(sum(timestamp > 0), 0), count(*) from CUPTI_ACTIVITY_KIND_CUDA_EVENT"
        ).fetchone()


def plain(log: Path) -> bytes:
    """An event log, whether or not the converter packed it."""
    return gzip.decompress(log.read_bytes()) if log.suffix == ".gz" else log.read_bytes()


def record_default(
    session: Session, program: Program, beside: bool = False, extra: Mapping[str, Path] = {}
) -> Path | None:
    """Run a program by `nsysalign run`, print its analysis in a line, keep trace and logs; the run directory.

    `extra` names more files for the archive.
    """
    folder = session.work / f"nsys-{program.name}"
    command = [
        sys.executable,
        "-m",
        "nsysalign",
        "run",
        "-o",
        str(folder),
        *(["--baseline"] if program.baseline else []),
        "--",
        *session.alone(program, beside=beside),
    ]
    status, said = run(command, session.environment, program.seconds + AFTER_S)
    if status or not (folder / "analysis.json").is_file():
        session.say(f"nsys {program.name}: exit status {status}: {last_words(said)}")
    if not (folder / "trace.sqlite").is_file():
        return None
    size = session.default.add(f"{program.name}.sqlite", (folder / "trace.sqlite").read_bytes())
    logs = event_logs(folder)
    for number, log in enumerate(logs, start=1):
        name = program.name if len(logs) == 1 else f"{program.name}-{number}"
        session.default.add(f"{name}.events.jsonl", plain(log))
    for log in baseline_logs(folder):
        session.default.add(f"{program.name}.baseline.jsonl", plain(log))
    for name, path in extra.items():
        if path.is_file():
            session.default.add(name, path.read_bytes())
    if (folder / "analysis.json").is_file():
        session.say(f"nsys {program.name}: {in_a_line(folder / 'analysis.json')}, {size >> 10} KiB")
    return folder


def in_a_line(path: Path) -> str:
    """What an analysis says of its intervals: how they were placed, and whether the budgets are exact."""
    analysis = json.loads(path.read_text())
    events = [i for i in analysis["intervals"] if i["kind"] == "event"]
    methods = dict(collections.Counter(i["method"] for i in events))
    exact = sum(
        sum(i["parts_ns"].values()) == i["elapsed_ns"] == i["end_ns"] - i["start_ns"]
        for i in events
    )
    unknown = sum(i["parts_ns"].get("unknown", 0) for i in events)
    reasons = dict(collections.Counter(u["reason"][:60] for u in analysis["unaligned"]))
    bar = statistics.median([i["error_ns"] for i in events]) if events else 0
    return (
        f"{len(events)} event intervals of {len(analysis['intervals'])}, {methods}, unaligned {reasons}, "
        f"unknown {unknown} ns, budgets exact {exact}/{len(events)}, median bar {bar:.0f} ns"
    )


# --- the experiments with the GPU's own timer ---------------------------------------------------------------------


def globaltimer(session: Session) -> None:
    """globaltimer with event tracing, for a later check, and under nsys; what its check prints goes to the log."""
    if session.library:
        traced = session.work / "stamps_traced.json"
        path = HERE.relative_to(ROOT) / "globaltimer.py"
        record_truth(session, Program("globaltimer", (str(path), str(traced)), 90))()
        if traced.is_file():
            session.truth.add("globaltimer.stamps.json", traced.read_bytes())
    if not session.nsys:
        return
    stamps = session.work / "stamps.json"
    program = Program(
        "globaltimer", (str(HERE.relative_to(ROOT) / "globaltimer.py"), str(stamps)), 90
    )
    run_dir = record_default(session, program, extra={"globaltimer.stamps.json": stamps})
    if run_dir and stamps.is_file() and (run_dir / "analysis.json").is_file():
        session.default.add("globaltimer.analysis.json", (run_dir / "analysis.json").read_bytes())
        show(
            session,
            [sys.executable, str(HERE / "globaltimer_check.py"), str(run_dir), str(stamps)],
            60,
        )


def event_place(session: Session) -> None:
    """event_place alone and under nsys; what its check prints goes to the log."""
    place, alone = (session.work / f"{n}.json" for n in ("place", "place_alone"))
    folder = HERE.relative_to(ROOT)
    program = Program("event_place_alone", (str(folder / "event_place.py"), str(alone)), 150)
    show(session, session.alone(program), program.seconds + AFTER_S)
    if alone.is_file():
        session.default.add("event_place_alone.json", alone.read_bytes())
    if not session.nsys:
        return
    program = Program("event_place", (str(folder / "event_place.py"), str(place)), 150)
    run_dir = record_default(session, program, extra={"event_place.json": place})
    if run_dir and place.is_file():
        trace = str(run_dir / "trace.sqlite")
        show(
            session,
            [sys.executable, str(HERE / "event_place.py"), "--check", str(place), "--trace", trace],
            60,
        )


EXPERIMENTS = {"globaltimer": globaltimer, "event_place": event_place}


def traced_experiment(session: Session) -> None:
    """event_place with event tracing: CUPTI's time stamps of the very events whose own stamps are found."""
    if session.over:
        return session.say("truth event_place: left out, the time is over")
    traced = session.work / "place_traced.json"
    path = HERE.relative_to(ROOT) / "event_place.py"
    record_truth(session, Program("event_place_traced", (str(path), str(traced)), 150))()
    if traced.is_file():
        session.truth.add("event_place_traced.json", traced.read_bytes())
        show(session, [sys.executable, str(HERE / "event_place.py"), "--check", str(traced)], 60)


def show(session: Session, command: Sequence[str], seconds: float) -> None:
    """Run a command and print all it says."""
    status, said = run(command, session.environment, seconds)
    name = [Path(c).name for c in command if c.endswith(".py")][-1]
    session.say(f"{name}: exit status {status}\n{said.rstrip()}")


# --- everything -----------------------------------------------------------------------------------------------------


def attempt(session: Session, name: str, work: Callable[[], object]) -> object:
    """One failure must not take the others along."""
    try:
        return work()
    except Exception as error:
        session.say(f"{name}: {type(error).__name__}: {error}")
        return None


def record_all(
    session: Session,
    programs: Sequence[Program],
    asleep: Program | None,
    experiments: Sequence[str],
) -> None:
    """Two lanes share the GPU: one records truth, the other goes through nsys; the rest happens beside them."""
    later: list[Future] = []
    with (
        ThreadPoolExecutor(2) as truth_after,
        ThreadPoolExecutor(1) as truth,
        ThreadPoolExecutor(3) as default,
    ):

        def truth_lane(program: Program, beside: bool = False) -> None:
            if session.over:
                return session.say(f"truth {program.name}: left out, the time is over")
            after = attempt(session, program.name, lambda: record_truth(session, program, beside))
            if after:
                later.append(truth_after.submit(attempt, session, program.name, after))

        def default_lane(program: Program, beside: bool = False) -> None:
            if session.over:
                return session.say(f"nsys {program.name}: left out, the time is over")
            attempt(session, program.name, lambda: record_default(session, program, beside))

        lanes = []
        for name in experiments:
            lanes.append(
                default.submit(attempt, session, name, partial(EXPERIMENTS[name], session))
            )
        if asleep:
            lanes += [truth.submit(truth_lane, asleep, True)] if session.library else []
            lanes += [default.submit(default_lane, asleep, True)] if session.nsys else []
        for program in programs:
            lanes += [truth.submit(truth_lane, program)] if session.library else []
            lanes += [default.submit(default_lane, program)] if session.nsys else []
        if "event_place" in experiments and session.library:
            lanes.append(
                truth.submit(attempt, session, "event_place", partial(traced_experiment, session))
            )
        for lane in lanes:
            lane.result()
        for rest in later:
            rest.result()


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("out", type=Path, metavar="OUT")
    arguments.add_argument("--set", choices=sorted(SETS), default="a")
    arguments.add_argument(
        "--nsys", metavar="PATH", help="nsys itself, or an archive made by bundle-nsys"
    )
    arguments.add_argument(
        "--limit", type=float, default=340, metavar="SECONDS", help="start nothing after so long"
    )
    arguments.add_argument(
        "--only",
        metavar="A,B",
        help="these programs, in this order; globaltimer, event_place: the experiments",
    )
    arguments.add_argument(
        "--keep", type=float, metavar="MIB", help="how large all archives may be together"
    )
    arguments.add_argument(
        "--cuda", type=Path, metavar="DIR", help="look here first for CUDA's headers and CUPTI"
    )
    asked = arguments.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, end_all)
    known = [*SETS[asked.set], *([ASLEEP[asked.set]] if asked.set in ASLEEP else [])]
    experiments = [] if asked.set == "ddp" else list(EXPERIMENTS)
    names = [p.name for p in known] + experiments
    wanted = asked.only.split(",") if asked.only else names
    if unknown := set(wanted) - set(names):
        arguments.error(
            f"set {asked.set} has no {', '.join(sorted(unknown))}; it has {', '.join(names)}"
        )
    if asked.keep:
        Archive.left = int(asked.keep * (1 << 20))
    with tempfile.TemporaryDirectory(prefix="clock-truth-", ignore_cleanup_errors=True) as scratch:
        session = Session(asked, Path(scratch))
        asleep = ASLEEP.get(asked.set)
        record_all(
            session,
            sorted(
                (p for p in SETS[asked.set] if p.name in wanted), key=lambda p: wanted.index(p.name)
            ),
            asleep if asleep and asleep.name in wanted else None,
            [name for name in experiments if name in wanted],
        )
        session.say("done")


if __name__ == "__main__":
    main()
