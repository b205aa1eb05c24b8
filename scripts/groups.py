"""How well groups of labels hold, over recordings.

    python scripts/groups.py tests/data nsysalign/demo          where thresholds were chosen
    python scripts/groups.py ../shared/data                     and where they were not

Recordings are those of `same_numbers.py`.  Printed are, over all of their labels:

- ledgers: groups whose entries do not add up to what their intervals measured (there may be none);
- labels whose intervals all did one kind of work, and how many of these have more than one row, first
  calls apart, each by name: some truly have two paces;
- how often two modes, one 1.5 times as long as the other, are found in 20, 100 and 1,000 repetitions drawn
  from labels with one row and ordinary noise, and how often one mode becomes two rows;
- rows whose count times their typical interval misses their total by more than a quarter;
- how often leaving out one interval changes which of the others are together.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nsysalign.label import is_even
from nsysalign.split import groups
from nsysalign.split.groups import Measured, Part
from nsysalign.split.paces import paces
from nsysalign.text import plural

#: 90 % over 10 % quantile of ordinary noise.
ORDINARY = 1.25
MODES, SHARES, SIZES = 1.5, (0.5, 0.2), (20, 100, 1_000)
#: Two rows are the two modes if so much of each is on its own side.
APART = 0.85
#: Draws per label, size and share; intervals that are left out per label, at most.
DRAWS, LEFT_OUT = 5, 60


class Case(NamedTuple):
    """A label of a recording: what its intervals measured, and its groups."""

    recording: str
    label: str
    measured: Measured
    parts: list[Part]

    @property
    def steady(self) -> list[Part]:
        """Its groups without first calls."""
        return [part for part in self.parts if part.role != "first"]


def cases(folders: list[Path]) -> Iterator[Case]:
    """The labels of all recordings; complains of ledgers that do not add up."""
    place = Path(__file__).with_name("same_numbers.py")
    spec = importlib.util.spec_from_file_location("same_numbers", place)
    same_numbers = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(same_numbers)
    for recording in (r for folder in folders for r in same_numbers.recordings(folder)):
        with tempfile.TemporaryDirectory() as room:
            for name, trace, logs, _, clocks in same_numbers.inputs(recording, Path(room)):
                try:
                    yield from labels(f"{recording.parent.name}/{name}", trace, logs, clocks)
                except Exception as error:  # the exports hold some that cannot be analysed
                    print(f"{name}: {error}", file=sys.stderr)


def labels(name: str, trace: Path, logs: list[Path], clocks: Path | None) -> list[Case]:
    """The labels of one recording, with what `grouped` was asked."""
    import nsysalign

    asked = list[tuple[Measured, list[Part]]]()
    decide = groups.grouped

    def remembered(measured: Measured) -> list[Part]:
        before = len(asked)
        parts = decide(measured)
        del asked[before:]  # ranks of a label are asked about one by one
        asked.append((measured, parts))
        return parts

    groups.grouped = remembered
    try:
        analysis = nsysalign.analyze(trace, logs, clocks=clocks)
    finally:
        groups.grouped = decide
    elapsed = analysis.intervals.set_index("interval")["elapsed_ns"]
    for label in analysis.grouped:
        for group in label.groups:
            spent = {
                sum(entry.ns for entry in group.entries),
                sum(group.causes.values()),
                int(elapsed.loc[group.intervals].sum()),
            }
            if spent != {group.total_ns}:
                print(f"{name}: {label.name}: the ledger holds {spent}, not {group.total_ns}")
    names = list(dict.fromkeys(analysis.measured["label"]))
    return [Case(name, label, *each) for label, each in zip(names, asked, strict=True)]


def second_rows(known: list[Case]) -> None:
    """Labels of one kind of work with more than one row."""
    one = [
        case
        for case in known
        if len({(part.kind, part.pid) for part in case.parts}) == 1
        and len(case.measured.elapsed_ns) > 1
    ]
    split = [case for case in one if len(case.steady) > 1]
    print(f"one kind of work: {len(one)} labels, {len(split)} have more than one row:")
    for case in split:
        rows = [
            f"{len(part.at)} x {np.median(case.measured.elapsed_ns[part.at]) / 1e3:.1f} us"
            for part in case.steady
        ]
        print(f"    {case.recording} {case.label}: {', '.join(rows)}")


def modes(known: list[Case]) -> None:
    """Two modes that are made of one."""
    random = np.random.default_rng(0)
    quiet = []
    for case in known:
        if len(case.steady) == 1 and len(case.steady[0].at) >= 20:
            times = case.measured.elapsed_ns[case.steady[0].at]
            low, high = np.quantile(times, [0.1, 0.9])
            if high <= ORDINARY * low and low > 2_000 / (MODES - 1):
                quiet.append(times)
    print(f"modes: {len(quiet)} labels with ordinary noise")
    for size in SIZES:
        found, alone = Counter(), 0
        for times in quiet:
            for _ in range(DRAWS):
                drawn = random.choice(times, size)
                alone += len(paces(drawn, np.arange(size), drawn.sum())) > 1
                for share in SHARES:
                    slow = np.arange(size) < share * size
                    both = np.where(slow, (drawn * MODES).astype(np.int64), drawn)
                    sides = paces(both, np.arange(size), both.sum())
                    found[share] += len(sides) > 1 and any(
                        slow[side].sum() >= APART * slow.sum()
                        and (~slow[side]).sum() <= (1 - APART) * (~slow).sum()
                        for side in (np.concatenate(sides[n:]) for n in range(1, len(sides)))
                    )
        count = max(len(quiet) * DRAWS, 1)
        said = ", ".join(f"{found[share] / count:.1%} (share {share})" for share in SHARES)
        print(f"    {size:5} repetitions: found {said}; one mode in two rows {alone / count:.1%}")


def uneven(known: list[Case]) -> None:
    """Rows whose count times typical is not about their total, first calls apart: of these only the total
    is said."""
    rows, wrong = 0, []
    for case in known:
        for part in case.steady:
            times = np.sort(case.measured.elapsed_ns[part.at])
            rows += 1
            if not is_even(len(times), times[(len(times) - 1) // 2], times.sum()):
                wrong.append(f"{case.recording} {case.label}: {plural(len(times), 'interval')}")
    print(f"n x typical misses the total by more than a quarter: {len(wrong)} of {rows} rows")
    for text in wrong:
        print(f"    {text}")


def one_less(known: list[Case]) -> None:
    """What changes where one interval is left out."""
    random, tried, changed = np.random.default_rng(0), 0, Counter()
    for case in known:
        count = len(case.measured.elapsed_ns)
        if count < 3:
            continue
        for number in random.permutation(count)[:LEFT_OUT].tolist():
            kept = np.delete(np.arange(count), number)
            again = {
                frozenset(kept[part.at].tolist())
                for part in groups.grouped(case.measured.take(kept))
            }
            before = {frozenset(part.at.tolist()) - {number} for part in case.parts} - {frozenset()}
            tried += 1
            changed[f"{case.recording} {case.label}"] += again != before
    total = changed.total()
    print(f"one interval less: {total} of {tried} change the rows ({total / max(tried, 1):.2%})")
    for name, often in changed.most_common(12):
        print(f"    {often:3} {name}" if often else "", end="\n" if often else "")


def main() -> None:
    """All four, over the recordings of some folders."""
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    known = list(cases([Path(folder) for folder in sys.argv[1:]]))
    print(f"{len({case.recording for case in known})} recordings, {len(known)} labels")
    for measure in (second_rows, modes, uneven, one_less):
        measure(known)


if __name__ == "__main__":
    main()
