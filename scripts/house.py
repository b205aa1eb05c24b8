"""How the code reads, in numbers: they say where to look, and bound nothing (`tests/test_house.py` does).

    python scripts/house.py                      every room of the core
    python scripts/house.py nsysalign/split      one room or file, with its functions of most locals
    python scripts/house.py --way                and what one `analyze()` runs: functions and files
    python scripts/house.py --add                adds a rule about runs and a table to a copy, and counts the files

Tokens are without comments and docstrings.  A code line is a line with a token on it.  A name is
counted where it is bound: assigned, a parameter, a field, a variable of a loop.  It is a pronoun if
it says which and not what.  Locals are the names that a function binds, apart from its parameters and the
variables of comprehensions.  An assignment of several names at once is a tuple assignment.
"""

from __future__ import annotations

import argparse
import ast
import io
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import tokenize
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "nsysalign"
sys.path.insert(0, str(ROOT / "tests"))

#: Names that point at a thing and do not say what it is.
PRONOUNS = frozenset(
    {
        "another", "anything", "both", "each", "either", "every", "everything", "few", "found",
        "given", "here", "it", "many", "more", "most", "none", "nothing", "of", "on", "one", "other",
        "others", "own", "rest", "said", "same", "several", "some", "something", "such", "that",
        "them", "there", "these", "this", "those", "what", "which", "who", "whose",
    }
)  # fmt: skip
MOST_LOCALS = 20
_LAYOUT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENCODING, tokenize.ENDMARKER,
}  # fmt: skip
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass
class Measured:
    """The counts of a file, or of the files of a room."""

    lines: int = 0
    tokens: int = 0
    functions: int = 0
    function_tokens: int = 0
    bindings: int = 0
    pronouns: Counter[str] = field(default_factory=Counter)
    tuples: int = 0
    locals: dict[str, int] = field(default_factory=dict)  # by file and function

    def __add__(self, other: Measured) -> Measured:
        return Measured(
            lines=self.lines + other.lines,
            tokens=self.tokens + other.tokens,
            functions=self.functions + other.functions,
            function_tokens=self.function_tokens + other.function_tokens,
            bindings=self.bindings + other.bindings,
            pronouns=self.pronouns + other.pronouns,
            tuples=self.tuples + other.tuples,
            locals=self.locals | other.locals,
        )

    def row(self, name: str) -> str:
        """One line of the table."""
        pronouns = sum(self.pronouns.values())
        crowded = sum(count > MOST_LOCALS for count in self.locals.values())
        return (
            f"{name:24}{self.lines:8,}{self.tokens / max(self.lines, 1):8.1f}"
            f"{self.function_tokens / max(self.functions, 1):10.0f}"
            f"{100 * pronouns / max(self.bindings, 1):9.1f} %"
            f"{1000 * self.tuples / max(self.lines, 1):8.0f}{crowded:9}"
        )


HEADER = (
    f"{'':24}{'lines':>8}{'tok/line':>8}{'tok/func':>10}{'pronouns':>11}{'tuples':>8}{'crowded':>9}"
)


def measured(path: Path) -> Measured:
    """The counts of one file."""
    text = path.read_text("utf-8")
    tree = ast.parse(text)
    docstrings = _docstring_lines(tree)
    positions = [
        token.start
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in _LAYOUT and token.start[0] not in docstrings
    ]
    out = Measured(lines=len({line for line, _ in positions}), tokens=len(positions))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = (node.lineno, node.col_offset)
            last = (node.end_lineno or 0, node.end_col_offset or 0)
            out.functions += 1
            out.function_tokens += bisect_left(positions, last) - bisect_left(positions, first)
            out.locals[f"{path.name}:{node.name}"] = len(local_names(node))
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            out.tuples += 1
    bindings = list(bound_names(tree))
    out.bindings = len(bindings)
    out.pronouns = Counter(name for name in bindings if name.strip("_") in PRONOUNS)
    return out


def _docstring_lines(tree: ast.Module) -> set[int]:
    """The lines of texts that are statements of their own."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def bound_names(tree: ast.AST) -> Iterator[str]:
    """Every name at every place where it is bound."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def local_names(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """What a function binds itself, apart from its parameters and variables of comprehensions."""
    names: set[str] = set()

    def visit(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (*_SCOPES, *_COMPREHENSIONS)):
                continue
            if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
                names.add(child.id)
            visit(child)

    visit(function)
    parameters = {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}
    return names - parameters


def rooms() -> dict[str, list[Path]]:
    """The files of the core by room: a folder of the package, or "." for the files beside them."""
    files: dict[str, list[Path]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        room = path.relative_to(PACKAGE).parts[0]
        files.setdefault("." if room.endswith(".py") else room, []).append(path)
    return files


def total(files: Iterable[Path]) -> Measured:
    """The counts of several files together."""
    return sum((measured(path) for path in files), Measured())


def functions_run() -> set[tuple[str, str, int]]:
    """File, name and line of every function of the package that one analysis of the recording `probe`
    runs; what runs once in a process is not among them."""
    from recordings import unpack

    import nsysalign

    with tempfile.TemporaryDirectory() as folder:
        trace, log = unpack("probe", Path(folder))[:2]
        nsysalign.analyze(trace, [log])
        called: set[tuple[str, str, int]] = set()

        def note(frame: FrameType, event: str, argument: object) -> None:
            code = frame.f_code
            if event == "call" and not code.co_name.startswith("<"):
                called.add((code.co_filename, code.co_name, code.co_firstlineno))

        threading.setprofile(note)
        sys.setprofile(note)
        nsysalign.analyze(trace, [log])
        sys.setprofile(None)
        threading.setprofile(None)
    return {call for call in called if call[0].startswith(f"{PACKAGE}/")}


class Edit(NamedTuple):
    """A text that goes before another one in a file of the package; into a new file, where `before` is
    empty."""

    file: str
    text: str
    before: str = ""


#: What somebody writes who adds a rule about runs: its file, and its line in the registry.
NEW_RULE = (
    Edit(
        "explain/runs/trial.py",
        """from typing import NamedTuple

from nsysalign.explain.finding import OfRuns, Remark


class Trial(NamedTuple):
    operations: int


def trials_of(ran):
    return OfRuns((Trial(len(ran.trace.operations)),))


def trial(facts):
    for known in facts.analysis.of_runs_by(Trial):
        yield Remark(f"the trial counted {known.operations} operations")
""",
    ),
    Edit(
        "explain/rules/__init__.py",
        "from nsysalign.explain.runs import trial\n",
        "from nsysalign.model import",
    ),
    Edit(
        "explain/rules/__init__.py",
        '    Rule("trial", trial.trial, facts=trial.trials_of),\n',
        '    Rule("ranges-without-work"',
    ),
)
#: A table: its paragraph, and what computes it.
NEW_TABLE = (
    Edit("frames.py", "    TRIALS,\n", "    INTERVALS, PARTS, SEGMENTS"),
    Edit(
        "frames.py",
        "trials: operations by name\n    key: name\n    name   str    name of a kernel\n"
        "    count  int64  how many\n\n",
        "intervals: one row per placed interval\n",
    ),
    Edit(
        "explain/runs/gaps.py",
        "trials = ran.names.assign(name=ran.names['kernel'], count=1).drop_duplicates('name')\n    ",
        "return OfRuns((*idle_of_devices, *waits)",
    ),
    Edit("explain/runs/gaps.py", "'trials': frames.check(trials, frames.TRIALS), ", '"gaps": '),
)


def apply(edits: Iterable[Edit], package: Path) -> list[str]:
    """Make them in a copy of the package; the files that they touch.  Raises ValueError where a place is
    not there, or there twice."""
    edits = list(edits)
    for edit in edits:
        path = package / edit.file
        text = path.read_text("utf-8") if edit.before else ""
        if edit.before and text.count(edit.before) != 1:
            raise ValueError(
                f"{edit.file}: {edit.before!r} is there {text.count(edit.before)} times"
            )
        path.write_text(text.replace(edit.before, edit.text + edit.before) if text else edit.text)
    return sorted({edit.file for edit in edits})


#: Analyses the demo with the copy, stores the analysis and reads it back: what the rule said, and the table.
_TRY = """
import sys; from pathlib import Path
import nsysalign
from nsysalign.store import database
analysis = nsysalign.analyze(sys.argv[1], [sys.argv[2]])
database.write(analysis, sys.argv[3])
print([note for note in analysis.notes if "trial" in note], len(nsysalign.load(sys.argv[3]).trials))
"""


def added() -> tuple[list[str], list[str], str]:
    """Files that a rule about runs touches, files that a table touches, and what an analysis with both
    says."""
    from recordings import unpack

    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "nsysalign"
        shutil.copytree(PACKAGE, copy)  # with what is compiled, of which the edited files are not
        of_rule, of_table = apply(NEW_RULE, copy), apply(NEW_TABLE, copy)
        trace, log = unpack("probe", Path(folder))[:2]
        # without site, whose .pth of an editable installation finds the original
        packages = [path for path in sys.path if path.endswith("-packages")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([folder, *packages])}
        arguments = [str(trace), str(log), str(Path(folder) / "analysis.db")]
        done = subprocess.run(
            [sys.executable, "-S", "-c", _TRY, *arguments],
            cwd=folder, env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
    return of_rule, of_table, done.stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", type=Path, help="rooms or files, instead of all rooms")
    parser.add_argument("--way", action="store_true", help="also what one analyze() runs")
    parser.add_argument("--add", action="store_true", help="what a new rule and a new table touch")
    options = parser.parse_args()
    print(HEADER)
    if not options.paths:
        for room, files in rooms().items():
            print(total(files).row(room))
        core = [path for room, files in rooms().items() if room != "addons" for path in files]
        print(total(core).row("core (without addons)"))
    for path in options.paths:
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        for file in files:
            print(measured(file).row(file.name))
        whole = total(files)
        print(whole.row(str(path)))
        print("pronouns:", ", ".join(f"{name} {n}" for name, n in whole.pronouns.most_common()))
        crowded = [(n, name) for name, n in whole.locals.items() if n > MOST_LOCALS]
        print("locals:", ", ".join(f"{name} {n}" for n, name in sorted(crowded, reverse=True)))
    if options.add:
        of_rule, of_table, outcome = added()
        print(f"a rule about runs touches {len(of_rule)} files: {', '.join(of_rule)}")
        print(f"a table touches {len(of_table)} files: {', '.join(of_table)}")
        print(f"an analysis with both: {outcome}")
    if options.way:
        called = functions_run()
        files_run = {file for file, _, _ in called}
        addons = sum("/addons/" in file for file in files_run)
        print(f"analyze(): {len(called)} functions in {len(files_run)} files, {addons} of add-ons")


if __name__ == "__main__":
    main()
