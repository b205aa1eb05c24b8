"""Measures what nsys adds to each kind of call on this machine: the same work in two processes, one of them under nsys.

A host's speed changes within seconds.  So both processes run at the same time, on the same core, and take turns after every
half millisecond: what is compared was measured side by side.  The result is kept in the user's cache, under everything it
depends on.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import platform
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from importlib import metadata
from pathlib import Path
from typing import Any

from nsysalign.errors import NsysAlignError, OutputError
from nsysalign.files import write_lines
from nsysalign.predict.nsys_cost_work import FIRST_RECORD, RECORD, TYPICAL
from nsysalign.record.nsys import Nsys, profile_arguments
from nsysalign.untrusted import open_regular

FORMAT, VERSION = "nsysalign-nsys-cost", 3
#: Older measurements are not used: drivers' settings, kernels and neighbours change.
STALE_S = 30 * 86_400
#: Pairs of processes (they differ a little, for good), and batches of each kind in each.
ROUNDS, BATCHES = 2, 40
_PATIENCE_S = 120
_PROC = Path("/proc")
_REPAIR = "nsysalign doctor --calibrate"


@dataclass(frozen=True)
class Machine:
    """Everything the cost depends on that can be read without starting anything.  None of it is private."""

    gpu: str
    driver: str
    nsys: str
    torch: str
    python: str
    cpu: str


@dataclass(frozen=True)
class CallCost:
    """Medians of the batches, ns per call, and the 5th percentile of those under nsys: an undisturbed host; `ratio`: the median of
    what neighbouring batches say (nsys / plain), and its 5th and 95th percentile."""

    plain_ns: float
    nsys_ns: float
    nsys_least_ns: float
    ratio: float
    ratio_low: float
    ratio_high: float


@dataclass(frozen=True)
class NsysCost:
    """The result of a measurement."""

    machine: Machine
    made_s: float  # UTC
    calls: Mapping[str, CallCost]
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def age_s(self) -> float:
        return time.time() - self.made_s

    @property
    def header(self) -> dict[str, Any]:
        """What an event log records of it: how many times longer a record call takes under nsys, how long an event's first one
        then takes, ns, while nothing disturbs the host, and which share of the time of typical calls nsys adds.

        (nsys makes first ones 2.03 times longer on an H100, where the runs of programs differed by 1.75.)"""
        out = {}
        if RECORD in self.calls:
            out["record_under_nsys"] = self.calls[RECORD].ratio
        if FIRST_RECORD in self.calls:
            out["record_undisturbed_ns"] = self.calls[FIRST_RECORD].nsys_least_ns
        if all(kind in self.calls for kind in TYPICAL):
            out["added_share"] = statistics.fmean(
                1 - 1 / self.calls[kind].ratio for kind in TYPICAL
            )
        return out


class Unusable(Exception):
    """A file of the cache that exists but cannot be used.  The text says why."""


def machine(nsys: Nsys) -> Machine | None:
    """This machine, None if no NVIDIA driver is loaded."""
    driver = _found(_PROC / "driver/nvidia/version", r"Kernel Module.*?\s(\d+\.[\d.]+)")
    cards = sorted((_PROC / "driver/nvidia/gpus").glob("*/information"))
    if driver is None:
        return None
    names = [_found(card, r"Model:\s*(.+)") or "unknown" for card in cards]
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = "unknown"
    cpu = _found(_PROC / "cpuinfo", r"model name\s*:\s*(.+)") or platform.machine()
    return Machine(
        names[0] if names else "unknown",
        driver,
        nsys.version,
        torch,
        platform.python_version(),
        cpu,
    )


def _found(path: Path, pattern: str) -> str | None:
    try:
        match = re.search(pattern, path.read_text("utf-8", "replace")[:65_536])
    except OSError:
        return None
    return " ".join(match[1].split())[:100] if match else None


# --- the cache ---------------------------------------------------------------------------------------------


def cache_file(of: Machine, environ: Mapping[str, str] = os.environ) -> Path:
    """Where the measurement of a machine is kept ($XDG_CACHE_HOME, else ~/.cache)."""
    base = environ.get("XDG_CACHE_HOME", "")
    folder = Path(base) if os.path.isabs(base) else Path(os.path.expanduser("~")) / ".cache"
    known = json.dumps([VERSION, asdict(of)], sort_keys=True)
    key = hashlib.blake2s(known.encode(), digest_size=8).hexdigest()
    return folder / "nsysalign" / f"nsys-cost-{key}.json"


def save(cost: NsysCost, environ: Mapping[str, str] = os.environ) -> Path:
    """Save it.  Raises OutputError if the cache cannot be written."""
    path = cache_file(cost.machine, environ)
    try:
        write_lines(
            path, [json.dumps({"format": FORMAT, "version": VERSION, **asdict(cost)}, indent=1)]
        )
    except OSError as error:
        raise OutputError(
            f"{path.parent}: cannot be written ({error.strerror})",
            "XDG_CACHE_HOME=/a/folder " + _REPAIR,
        ) from error
    return path


def load(of: Machine, environ: Mapping[str, str] = os.environ) -> NsysCost | None:
    """What was measured on exactly this machine, None if nothing was.  Raises Unusable if it is damaged or older than
    STALE_S."""
    path = cache_file(of, environ)
    try:
        with open_regular(path) as file:
            text = file.read(1 << 20).decode("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise Unusable(
            f"the measurement in the cache cannot be read ({type(error).__name__})"
        ) from error
    try:
        cost = _parsed(json.loads(text))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Unusable("the measurement in the cache is damaged") from error
    if cost.machine != of:
        raise Unusable("the measurement in the cache is another machine's")
    if not 0 <= cost.age_s <= STALE_S:
        raise Unusable(f"it was measured {days(cost.age_s)} ago")
    return cost


def for_header(nsys: Nsys, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """For the header of event logs: what was measured on this machine, {} if nothing was."""
    here = machine(nsys)
    try:
        cost = load(here, environ) if here else None
    except Unusable:
        return {}
    return cost.header if cost else {}


def _parsed(found: Any) -> NsysCost:
    if found["format"] != FORMAT or found["version"] != VERSION:
        raise ValueError("another format")
    names = [column.name for column in fields(CallCost)]
    calls = {str(k): CallCost(*(_positive(v[n]) for n in names)) for k, v in found["calls"].items()}
    of = Machine(**{k: str(v) for k, v in found["machine"].items()})
    left_out = {str(k): str(v) for k, v in found["left_out"].items()}
    return NsysCost(of, _positive(found["made_s"]), calls, left_out)


def _positive(value: Any) -> float:
    if type(value) not in (int, float) or not 0 < value < 1e18:
        raise ValueError(value)
    return float(value)


def days(seconds: float) -> str:
    """An age in words."""
    if seconds < 0:
        return "in the future, not"
    whole = int(seconds // 86_400)
    return f"{whole} days" if whole > 1 else "1 day" if whole else f"{int(seconds // 3_600)} hours"


# --- measuring ---------------------------------------------------------------------------------------------


def calibrate(
    nsys: Nsys, of: Machine | None, tell: Callable[[str, int], None], rounds: int = ROUNDS
) -> NsysCost:
    """Measure, in `rounds` pairs of processes.

    Raises NsysAlignError if this Python has no torch, torch sees no GPU, or a process ends too soon.
    """
    if importlib.util.find_spec("torch") is None:
        raise NsysAlignError(
            "torch is not installed in this Python: there is no known work to measure",
            "install nsysalign where torch is, and there: " + _REPAIR,
        )
    found: list[Pairs] = []
    left_out: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="nsysalign-") as folder:
        for number in range(rounds):
            found.append(_round(nsys, Path(folder) / str(number), left_out, lambda kind, share, n=number: tell(
                f"known work with and without nsys: {kind}", round(100 * (n + share) / rounds)
            )))  # fmt: skip
    if of is None:
        raise NsysAlignError(
            "no NVIDIA driver is loaded on this machine", "run it where nvidia-smi lists a GPU"
        )
    return summary(of, found, left_out)


#: Kind -> (ns per call without nsys, the same under it) of neighbouring batches.
Pairs = dict[str, list[tuple[float, float]]]


def _round(
    nsys: Nsys, folder: Path, left_out: dict[str, str], tell: Callable[[str, float], None]
) -> Pairs:
    """All kinds, batch by batch in turn; the first of each kind, which warms up, is left out."""
    folder.mkdir()
    cpu = max(os.sched_getaffinity(0))
    tell("start", 0.0)
    with _Work(None, folder / "plain", cpu) as plain, _Work(nsys, folder / "under", cpu) as under:
        kinds, _ = (side.hello()["kinds"] for side in (plain, under))
        found: Pairs = {}
        for number, kind in enumerate(kinds):
            tell(kind, number / len(kinds))
            for turn in range(BATCHES + 1):
                sides = (plain, under) if turn % 2 else (under, plain)
                took = {side: side.batch(kind) for side in sides}
                refused = [why for why in took.values() if isinstance(why, str)]
                if refused:
                    left_out[kind] = refused[0]
                    break
                if turn:
                    found.setdefault(kind, []).append((took[plain], took[under]))
    return found


class _Work:
    """A process with the work, as a context manager; `nsys`: what it runs under."""

    def __init__(self, nsys: Nsys | None, stem: Path, cpu: int) -> None:
        self._where = " under nsys" if nsys else ""
        self._listener = socket.socket(socket.AF_UNIX)
        address = str(stem.with_suffix(".socket"))
        try:
            self._listener.bind(address)
        except OSError as error:  # paths of sockets have at most 107 bytes
            raise NsysAlignError(
                f"{address}: no socket can be made there ({error})", "TMPDIR=/tmp " + _REPAIR
            ) from error
        self._listener.listen(1)
        self._listener.settimeout(1.0)
        self._said = open(stem.with_suffix(".log"), "w+", errors="replace")  # noqa: SIM115  closed at the end
        profile = profile_arguments(nsys, stem)[0] if nsys else []
        root = str(Path(__file__).resolve().parents[2])
        env = {k: v for k, v in os.environ.items() if not k.startswith("NSYSALIGN_")}
        env["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [env.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            [*profile, sys.executable, "-m", "nsysalign.predict.nsys_cost_work", address, str(cpu)],
            env=env, stdout=self._said, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        self._connection: socket.socket | None = None

    def __enter__(self) -> _Work:
        return self

    def hello(self) -> dict[str, Any]:
        """What it says first.  Raises NsysAlignError if it has ended, says nothing for long, or cannot work here."""
        until = time.monotonic() + _PATIENCE_S
        while self._connection is None:
            try:
                self._connection = self._listener.accept()[0]
            except TimeoutError:
                if self._process.poll() is not None or time.monotonic() > until:
                    raise self._failed(0.0) from None
        self._connection.settimeout(_PATIENCE_S)
        self._lines = self._connection.makefile("rw", encoding="utf-8")
        first = self._answer()
        if "error" in first:
            raise NsysAlignError(
                f"the known work cannot be done here: {first['error']}",
                "run it where torch sees a GPU (python -c 'import torch; print(torch.cuda.is_available())')",
            )
        return first

    def batch(self, kind: str) -> float | str:
        """ns per call, or why there is none."""
        return self._answer(json.dumps(kind) + "\n")

    def _answer(self, question: str = "") -> Any:
        try:
            self._lines.write(question)
            self._lines.flush()
            return json.loads(self._lines.readline())
        except TimeoutError as error:
            raise self._failed(0.0) from error
        except (OSError, ValueError) as error:  # it closed the socket; nsys ends a little later
            raise self._failed(_PATIENCE_S) from error

    def _failed(self, patience_s: float) -> NsysAlignError:
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            text = f"the known work took more than {_PATIENCE_S} s{self._where}"
        else:
            self._said.seek(0)
            said = " ".join(self._said.read().split())[-200:] or "nothing was said"
            text = f"the known work ended{self._where} without a result: {said}"
        return NsysAlignError(text, "nsysalign doctor")

    def __exit__(self, kind: object, *_: object) -> None:
        self._listener.close()
        if self._connection is not None:
            with contextlib.suppress(OSError):  # it may have ended
                self._connection.shutdown(
                    socket.SHUT_RDWR
                )  # the file made from it keeps the socket open
            self._connection.close()
        try:
            self._process.wait(_PATIENCE_S if kind is None else 1.0)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._said.close()


def summary(of: Machine, rounds: Sequence[Pairs], left_out: Mapping[str, str]) -> NsysCost:
    """Per kind the medians over the batches of all rounds.  Raises NsysAlignError if there are none."""
    calls = {}
    for kind in dict.fromkeys(kind for pairs in rounds for kind in pairs if kind not in left_out):
        plain, under = zip(*(pair for pairs in rounds for pair in pairs.get(kind, ())), strict=True)
        ratios = [u / p for p, u in zip(plain, under, strict=True)]
        (least, _), (low, high) = map(_ends, (under, ratios))
        calls[kind] = CallCost(
            statistics.median(plain),
            statistics.median(under),
            least,
            statistics.median(ratios),
            low,
            high,
        )
    if not calls:
        raise NsysAlignError(
            "none of the known work could be done with this torch", "nsysalign doctor"
        )
    return NsysCost(of, time.time(), calls, dict(left_out))


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """The 5th and the 95th percentile."""
    cuts = (
        statistics.quantiles(values, n=20, method="inclusive")
        if len(values) > 1
        else [*values] * 19
    )
    return cuts[0], cuts[18]
