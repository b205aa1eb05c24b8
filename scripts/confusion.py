"""Every puzzle under `nsysalign run`: does it get the finding that its first lines promise, and
what else is said?

    scripts/confusion.py record OUT [PUZZLE.py ...]    run each on this machine's GPU, one run directory each in OUT
    scripts/confusion.py table OUT                     the table of what was found, from stored or recorded runs
    scripts/confusion.py keep OUT                      the runs, redacted and packed, as the tests' data

A puzzle says what is wrong with it in a line `# expects: RULE ...` (`nothing`: no error and no
warning).  The table has a row per script: what it must get, whether it got it, and what else its labels
got.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PUZZLES = Path(__file__).parent / "puzzles"
DATA = Path(__file__).parents[1] / "tests" / "data" / "puzzles"


def named(puzzle: Path, line: str = "expects") -> set[str]:
    """The rules named in one of the puzzle's lines; empty for `nothing`."""
    found = re.search(rf"^# {line}: (.*)$", puzzle.read_text(encoding="utf-8"), re.M)
    return set(found[1].split()) - {"nothing"} if found else set()


def record(out: Path, names: list[str]) -> None:
    for puzzle in [Path(n) for n in names] or sorted(PUZZLES.glob("*.py")):
        run = [sys.executable, "-m", "nsysalign", *["run", "-q", "--timeout", "120", "-o"]]
        ended = subprocess.run([*run, out / puzzle.stem, puzzle], check=False)
        print(f"{puzzle.stem}: {ended.returncode}", flush=True)


def table(out: Path) -> None:
    from nsysalign import load

    print(
        "| script | must find | found | other errors and warnings | notes |\n|---|---|---|---|---|"
    )
    for run in sorted(p.parent for p in out.glob("*/analysis.db")):
        puzzle = PUZZLES / f"{run.name}.py"
        findings, must = load(run).findings, named(puzzle) if puzzle.exists() else set()
        rules = findings["rule"]
        loud = set(rules[findings["severity"] != "info"])
        verdict = "yes" if must <= set(rules) and (must or not loud) else "**no**"
        cells = [must or {"nothing"}, {verdict}, loud - must, set(rules) - loud - must]
        print(f"| `{run.name}.py` | " + " | ".join(", ".join(sorted(c)) for c in cells) + " |")


def keep(out: Path) -> None:
    DATA.mkdir(exist_ok=True)
    for run in sorted(p.parent for p in out.glob("*/trace.sqlite")):
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / run.name
            redact = [sys.executable, "-m", "nsysalign", "redact", "-q", run, folder]
            subprocess.run(redact, check=True)
            with tarfile.open(DATA / f"{run.name}.tar.xz", "w:xz") as packed:
                for path in sorted(folder.iterdir()):
                    packed.add(path, path.name, filter=_nobody)


def _nobody(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in ("record", "table", "keep"):
        sys.exit(__doc__)
    if sys.argv[1] == "record":
        record(Path(sys.argv[2]), sys.argv[3:])
    else:
        {"table": table, "keep": keep}[sys.argv[1]](Path(sys.argv[2]))
