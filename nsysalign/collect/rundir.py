"""A fresh folder for every run."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from nsysalign.errors import NsysError
from nsysalign.untrusted import contents

RUNS = "nsysalign-runs"


def make_run_dir(stem: str, output: Path | None = None, *, base: Path | None = None) -> Path:
    """Create and return a new folder, mode 0700: the trace in it carries the profiled process's environment.

    `output` names the folder itself and must be new or empty; without it `nsysalign-runs/<stem>-NNN` gets
    the next free number.  mkdir is the lock: two runs started at once get two folders.
    """
    if output is not None:
        try:
            output.mkdir(mode=0o700, parents=True, exist_ok=True)
            taken = any(output.iterdir())
        except OSError as error:
            raise NsysError(
                f"cannot make the run directory {output}: {error.strerror}", "choose another -o DIR"
            ) from error
        if taken:
            raise NsysError(f"{output} is not empty, and a run never overwrites", "choose another -o DIR")
        return output.resolve()
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-.") or "run"
    return numbered((base or Path()) / RUNS, stem)


def numbered(parent: Path, stem: str) -> Path:
    """Create and return `parent/<stem>-NNN` with the next free number, mode 0700."""
    try:
        parent.mkdir(exist_ok=True)
        taken_numbers = [
            int(m[1]) for p in parent.iterdir() if (m := re.fullmatch(re.escape(stem) + r"-(\d+)", p.name))
        ]
        number = max(taken_numbers, default=0) + 1
        while True:
            path = parent / f"{stem}-{number:03d}"
            try:
                path.mkdir(mode=0o700)
                return path.resolve()
            except FileExistsError:
                number += 1
    except OSError as error:
        raise NsysError(
            f"cannot make a run directory in {parent}: {error.strerror}", "choose one with -o DIR"
        ) from error


@contextlib.contextmanager
def private(run_dir: Path) -> Iterator[None]:
    """While the block runs nobody else looks into the folder, which `-o` may have found open to all; then nsys's own files
    in it, which it makes readable by others, are the owner's alone.
    """
    mode = run_dir.stat().st_mode & 0o7777
    with contextlib.suppress(PermissionError):  # somebody else's folder in which we may write
        run_dir.chmod(mode & ~0o077)
    try:
        yield
    finally:
        for path in run_dir.glob("trace.*"):
            path.chmod(0o600)
        with contextlib.suppress(PermissionError):
            run_dir.chmod(mode)


_LONGEST_S = 1e9  # 30 years; also no infinity and no NaN


def last_duration_s(stem: str, base: Path | None = None) -> float | None:
    """How long the newest run of that name was profiled, None where there is none or it does not say."""
    runs = (base or Path()) / RUNS
    numbered = [
        (int(m[1]), p)
        for p in runs.glob("*/run.json")
        if (m := re.fullmatch(re.escape(stem) + r"-(\d+)", p.parent.name))
    ]
    took = manifest(max(numbered)[1].parent).get("profiled_s") if numbered else None
    return float(took) if isinstance(took, int | float) and 0 <= took < _LONGEST_S else None


def manifest(run_dir: Path) -> dict[str, Any]:
    """What run.json says of a run; {} where there is no such file, or it says nothing of use."""
    try:
        found = json.loads(contents(run_dir / "run.json").decode())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def event_logs(run_dir: Path) -> list[Path]:
    """The event logs of a run, sorted by name: `events-PID.jsonl`, long ones `events-PID.jsonl.gz`."""
    return sorted(p for end in ("jsonl", "jsonl.gz") for p in run_dir.glob(f"events-*.{end}"))


def write_whole(path: Path, lines: Iterable[str]) -> int:
    """Write lines under another name and rename: what has its final name is complete.  Returns how many.

    A name that ends in .gz is compressed: level 1 takes a tenth of the time that making the lines takes.
    """
    partial = path.with_name(path.name + ".partial")
    partial.unlink(missing_ok=True)  # in a folder that somebody sent it may be a link
    count = 0
    try:
        # half a character (a file name that is no UTF-8) is written as JSON spells it: \udcff
        text = {"encoding": "utf-8", "errors": "backslashreplace"}
        packed = path.suffix == ".gz"
        with gzip.open(partial, "wt", 1, **text) if packed else open(partial, "w", **text) as file:
            for line in lines:
                file.write(line + "\n")
                count += 1
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return count
