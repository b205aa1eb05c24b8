"""`nsysalign check` on every program of cheats.py and honest.py: a table of what it found; needs a
GPU, nsys and torch.

scripts/referee/judge.py OUT [NAME ...]     a run directory and a verdict (NAME.json) per program in OUT
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def names(file: str) -> list[str]:
    return subprocess.check_output([sys.executable, HERE / file], text=True).split()


def checked(file: str, name: str, out: Path) -> dict | None:
    """The verdict on one program, None if there is none."""
    verdict = out / f"{name}.json"
    options = ["-q", "--timeout", "120", "-o", out / name, "--json", verdict]
    subprocess.run([sys.executable, "-m", "nsysalign", "check", *options, "--", HERE / file, name], check=False)  # fmt: skip
    return json.loads(verdict.read_text()) if verdict.is_file() else None


def main(out: Path, wanted: list[str]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    rows, counts = [], {}
    for file in ("cheats.py", "honest.py"):
        for name in names(file):
            if wanted and name not in wanted:
                continue
            verdict = checked(file, name, out)
            found = [d for d in (verdict or {}).get("doubts", ()) if d["level"] == "found"]
            said = {
                ("cheats.py", True): "found",
                ("cheats.py", False): "**not found**",
                ("honest.py", True): "**falsely accused**",
                ("honest.py", False): "nothing said",
            }[file, bool(found)]
            said = said if verdict else "no verdict"
            counts[said] = counts.get(said, 0) + 1
            worth = max((d["worth_ns"] or 0 for d in found), default=0)
            checks = ", ".join(sorted({d["check"] for d in found}))
            rows.append(f"| {name} | {said} | {checks} | {worth / 1000:.1f} |")
    print("| program | verdict | check | worth, us |", "|---|---|---|---|", *rows, sep="\n")
    print(", ".join(f"{count} {said}" for said, count in counts.items()))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2:])
