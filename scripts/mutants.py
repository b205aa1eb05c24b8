"""Mutation testing: which small faults in the code would no test notice?

    python scripts/mutants.py map  WORK     which tests execute which lines (once, some minutes)
    python scripts/mutants.py run  WORK     one mutant after the other; goes on where it was stopped
    python scripts/mutants.py show WORK     figures by module, and the survivors with their change
    python scripts/mutants.py again WORK FILE...    the survivors once more, against these (new) tests of the checkout

WORK is a folder outside the repository: it gets a copy of the tree, and only the copy is changed.  A mutant is one change
of one expression or statement (another comparison, operator, constant, argument order; a condition turned round, a
statement left out, None returned).  It dies when a test fails that executes the changed line: the cheapest of every file
first, those near the module before all others, until `--seconds` of processor time are spent.  What is left is looked at by hand: a test is missing, the code is not needed, or
the change changes nothing.  `--sample` mutants are drawn with a fixed seed from MODULES, shared out by their size.

Texts, annotations, imports and the first line of a function are left alone.  Not part of CI.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import py_compile
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
#: What is mutated -> how many of 200 mutants it gets.
MODULES = {
    "nsysalign/align/[bmr]*.py": 35,
    "nsysalign/attribute/*.py": 85,
    "nsysalign/diagnose/facts.py": 20,
    "nsysalign/trace/redaction.py": 25,
    "nsysalign/commands/cache.py": 15,
    "nsysalign/compare/label_changes.py": 20,
}
#: Survivors of 2026-11-22 that were looked at: module, what was changed, and why no test notices.
_ALIKE = "both are of one length by construction: the check never fires"
_SPEED = "decides how something is worked out, not what comes out"
SURVIVORS = (
    ("align/marked.py", "np.union1d(", "the union of two sets, in the other order"),
    ("align/marked.py", "strict=True", _ALIKE),
    (
        "attribute/gaps.py",
        "previous_issue = ",
        "no operation before it: the wait is unknown either way",
    ),
    ("attribute/groups.py", "_PIECES_EACH", _SPEED),
    ("attribute/groups.py", "slots > _SLOTS", _SPEED),
    (
        "attribute/groups.py",
        "p.ref >= 0",
        "the first row of a table: none of a piece's in any trace of the tests",
    ),
    ("attribute/host_activity.py", "gaps.thread >= 0", "0 is no thread of nsys's"),
    ("attribute/host_activity.py", "strict=True", _ALIKE),
    (
        "attribute/interior.py",
        "special = ",
        "what the first call of a trace issued goes the long way, to the same answer",
    ),
    (
        "attribute/overhead.py",
        "after_from_ns",
        "a fitted constant: recordings say how good it is (score_predictions.py)",
    ),
    ("attribute/partial.py", "strict=True", _ALIKE),
    ("attribute/scene.py", "if any(items", "a trace without the call of one of two records: open"),
    (
        "attribute/sm_time.py",
        "last > duration[launch]",
        "a stamp to the nanosecond at the end of its bar: open",
    ),
    ("attribute/sm_time.py", "(1 << _TIME_BITS) - 1", "where the longest of all times is cut"),
    ("attribute/timeline.py", "_STRETCH", _SPEED),
    ("attribute/timeline.py", "strict=True", _ALIKE),
    (
        "attribute/timeline.py",
        'waits["call"] >= 0',
        "a wait is never the first call: that is a record's",
    ),
    ("attribute/work.py", "np.empty(0", "of a trace without operations, nothing of it is used"),
    (
        "compare/label_changes.py",
        "abs(total.change_ns) < matters",
        "equal ones were called slower or faster before",
    ),
    ("compare/label_changes.py", "sort=False", "a dictionary is made of it"),
    ("diagnose/facts.py", "np.diff(at) < 0", "sorts what is sorted"),
    ("diagnose/facts.py", "np.diff(number) >= 0", "sorts what is sorted"),
    ("diagnose/facts.py", "len(rows) <= _FEW", _SPEED),
    (
        "trace/redaction.py",
        "number or 0",
        "a mark without any text, where string 1 is the name of ours",
    ),
)
#: Where tests are looked for.  Those that need a browser, a GPU or nsys are left out.
FOLDERS = (
    "cases", "attribute", "compare", "diagnose", "privacy", "speed", "properties", "slices", "trace",
    "unprofiled", "confirm", "report", "ranks", "commands", "align", "clocks", "timers", "marks",
)  # fmt: skip
#: Processor time after which a mutant is taken for one that never ends.
_LONGEST_S = 60
_SELECTED = "not gpu and not browser and not nsys"
_QUIET = [
    "-q",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:xdist",
    "-p",
    "no:rerunfailures",
    "--no-header",
    "--tb=line",
    "-W",
    "ignore::pytest.PytestAssertRewriteWarning",
]  # of what `_preload` imports
_COMPARISONS = {
    ast.Lt: [ast.LtE, ast.GtE], ast.LtE: [ast.Lt, ast.Gt], ast.Gt: [ast.GtE, ast.LtE], ast.GtE: [ast.Gt, ast.Lt],
    ast.Eq: [ast.NotEq], ast.NotEq: [ast.Eq], ast.In: [ast.NotIn], ast.NotIn: [ast.In],
    ast.Is: [ast.IsNot], ast.IsNot: [ast.Is],
}  # fmt: skip
_OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitOr,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.Pow: ast.Mult,
}  # fmt: skip
_FUNCTIONS = {
    "maximum": "minimum",
    "minimum": "maximum",
    "min": "max",
    "max": "min",
    "any": "all",
    "all": "any",
}
#: Calls whose first two arguments are alike, or of kinds that nobody can take for one another.
_ORDERLESS = {*_FUNCTIONS, "isinstance", "hypot", "array_equal", "full", "zeros", "empty", "ones"}
_SIDES = {"left": "right", "right": "left"}


class Mutant(NamedTuple):
    """One change: the text from `begin` to `stop` (offsets in the UTF-8 source) becomes `after`."""

    module: str
    line: int
    last_line: int  # of the statement: tests are chosen by the lines first..last
    inside: bool  # a function's body, not the module's
    kind: str
    begin: int
    stop: int
    before: str
    after: str

    @property
    def key(self) -> str:
        return f"{self.module}:{self.begin}:{self.stop}:{self.after}"


def mutants_of(module: str, source: str) -> list[Mutant]:
    """All mutants of a file, in the order of its text."""
    tree = ast.parse(source)
    offsets = [0]
    for text in source.encode().splitlines(keepends=True):
        offsets.append(offsets[-1] + len(text))
    raw, found = source.encode(), []

    def span(node: Any) -> tuple[int, int]:
        return offsets[node.lineno - 1] + node.col_offset, offsets[
            node.end_lineno - 1
        ] + node.end_col_offset

    def add(kind: str, node: Any, after: str, statement: ast.stmt, inside: bool) -> None:
        begin, stop = span(node)
        body = getattr(statement, "body", None)
        last = body[0].lineno - 1 if isinstance(body, list) and body else statement.end_lineno
        before = raw[begin:stop].decode()
        first = min(statement.lineno, node.lineno)
        found.append(
            Mutant(module, first, max(last, first), inside, kind, begin, stop, before, after)
        )

    for node, statement, inside in _walk(tree):
        for kind, after in _changes(node):
            add(kind, node, after, statement, inside)
    return sorted(set(found), key=lambda m: (m.begin, m.stop, m.after))


def _walk(tree: ast.Module) -> Iterator[tuple[ast.AST, ast.stmt, bool]]:
    """(node, the statement it belongs to, whether that is in a function) without texts and annotations."""

    def visit(node: ast.AST, statement: ast.stmt | None, inside: bool) -> Iterator:
        if isinstance(node, ast.JoinedStr | ast.Import | ast.ImportFrom):
            return  # positions inside of f-strings are only right from Python 3.12 on
        if isinstance(node, ast.stmt):
            statement = node
        if statement is not None:
            yield node, statement, inside
        deeper = inside or isinstance(node, ast.FunctionDef)
        for name, value in ast.iter_fields(node):
            if name in (
                "annotation",
                "returns",
                "decorator_list",
                "keywords" if isinstance(node, ast.ClassDef) else "",
            ):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from visit(child, statement, deeper if name == "body" else inside)

    return visit(tree, None, False)


def _changes(node: ast.AST) -> Iterator[tuple[str, str]]:
    """(kind, new text) of the changes of one node."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        for other in _COMPARISONS[type(node.ops[0])]:
            yield "comparison", _text(ast.Compare(node.left, [other()], node.comparators))
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS and not _is_text(node):
        kind = "boolean" if isinstance(node.op, ast.BitAnd | ast.BitOr) else "arithmetic"
        yield kind, _text(ast.BinOp(node.left, _OPERATORS[type(node.op)](), node.right))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.Invert | ast.USub):
        yield "boolean" if not isinstance(node.op, ast.USub) else "arithmetic", _text(node.operand)
    elif isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield "boolean", _text(ast.BoolOp(other, node.values))
        yield (
            "boolean",
            _text(ast.BoolOp(node.op, node.values[1:]) if len(node.values) > 2 else node.values[1]),
        )
    elif isinstance(node, ast.IfExp):
        yield "boolean", _text(ast.IfExp(node.test, node.orelse, node.body))
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        if isinstance(node.value, bool):
            yield "constant", str(not node.value)
        else:  # one more, or twice as much of what is a size or a duration
            yield (
                "constant",
                repr(
                    node.value + 1
                    if -100 < node.value < 100 and isinstance(node.value, int)
                    else node.value * 2
                ),
            )
    elif isinstance(node, ast.Constant) and node.value in _SIDES:
        yield "constant", repr(_SIDES[node.value])
    elif isinstance(node, ast.Call):
        yield from _changed_calls(node)
    else:
        yield from _changed_statements(node)


def _changed_calls(node: ast.Call) -> Iterator[tuple[str, str]]:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name in _FUNCTIONS:
        if isinstance(node.func, ast.Attribute):
            other: ast.expr = ast.Attribute(node.func.value, _FUNCTIONS[name], ast.Load())
        else:
            other = ast.Name(_FUNCTIONS[name], ast.Load())
        yield "function", _text(ast.Call(other, node.args, node.keywords))
    if (
        len(node.args) >= 2
        and name not in _ORDERLESS
        and not any(isinstance(a, ast.Starred) for a in node.args[:2])
    ):
        swapped = [node.args[1], node.args[0], *node.args[2:]]
        yield "arguments", _text(ast.Call(node.func, swapped, node.keywords))


def _changed_statements(node: ast.AST) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
        yield "return", "return None"
    elif isinstance(node, ast.AugAssign) and type(node.op) in _OPERATORS:
        yield (
            "arithmetic",
            _text(ast.AugAssign(node.target, _OPERATORS[type(node.op)](), node.value)),
        )
        yield "statement", "pass"
    elif _can_be_left_out(node):
        yield "statement", "pass"


def _can_be_left_out(node: ast.AST) -> bool:
    """What other code does not name: without it something else happens, not a NameError."""
    if isinstance(node, ast.Assign):
        return isinstance(node.targets[0], ast.Subscript)
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    return isinstance(node, ast.Continue | ast.Break | ast.Raise)


def _text(node: ast.AST) -> str:
    text = ast.unparse(ast.fix_missing_locations(node))
    return text if isinstance(node, ast.stmt) else f"({text})"


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_text(node: ast.BinOp) -> bool:
    return any(
        isinstance(s, ast.JoinedStr) or isinstance(getattr(s, "value", None), str)
        for s in (node.left, node.right)
        if not isinstance(s, ast.Attribute)
    )


def draw(tree: Path, sample: int, seed: int) -> list[Mutant]:
    """The sample: of each entry of MODULES its share."""
    total, out = sum(MODULES.values()), []
    for pattern, share in MODULES.items():
        files = sorted(tree.glob(pattern))
        every = [m for f in files for m in mutants_of(str(f.relative_to(tree)), f.read_text())]
        out += random.Random(f"{seed} {pattern}").sample(
            every, min(len(every), round(sample * share / total))
        )
    return out


class Work:
    """The folder: `tree` (the copy), `coverage`, `tests.json` (seconds per test), `results.jsonl`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.tree = folder.resolve(), folder.resolve() / "tree"
        self.coverage, self.tests = self.folder / "coverage", self.folder / "tests.json"
        self.results = self.folder / "results.jsonl"

    def copy(self) -> None:
        """The tracked and new files of the checkout, as they are."""
        shutil.rmtree(self.tree, ignore_errors=True)
        listed = subprocess.run(
            ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard", "-z"],
            check=True,
            capture_output=True,
        )
        for name in filter(None, listed.stdout.decode().split("\0")):
            if (ROOT / name).is_file():
                (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.tree / name)

    def done(self) -> dict[str, dict[str, Any]]:
        """Results so far, by mutant; the last one counts."""
        lines = self.results.read_text().splitlines() if self.results.exists() else []
        return {r["key"]: r for r in map(json.loads, lines)}


class Mapper:
    """pytest plugin: which test executes which line, and how much processor time each needs."""

    def __init__(self, work: Work) -> None:
        import coverage

        self.work, self.seconds, self.bad = work, {}, set()
        source = [str(work.tree / "nsysalign")]
        self.coverage = coverage.Coverage(
            data_file=str(work.coverage), source=source, config_file=False
        )
        self.coverage.start()

    def pytest_runtest_logstart(self, nodeid: str, location: Any) -> None:
        self.began = time.process_time()
        self.coverage.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed or report.skipped:
            self.bad.add(report.nodeid)

    def pytest_runtest_logfinish(self, nodeid: str, location: Any) -> None:
        self.seconds[nodeid] = time.process_time() - self.began

    def pytest_sessionfinish(self) -> None:
        self.coverage.stop()
        self.coverage.save()
        good = {node: s for node, s in self.seconds.items() if node not in self.bad}
        self.work.tests.write_text(json.dumps(good, indent=0))


class Chosen:
    """pytest plugin: these tests and no others, in this order (all, if none is named)."""

    def __init__(self, nodes: list[str]) -> None:
        self.order = {node: k for k, node in enumerate(nodes)}
        self.failed = ""

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        if self.order:
            items[:] = sorted(
                (i for i in items if i.nodeid in self.order), key=lambda i: self.order[i.nodeid]
            )

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid


class Choice:
    """Which tests can notice a mutant."""

    def __init__(self, work: Work) -> None:
        from coverage import CoverageData

        self.data = CoverageData(str(work.coverage))
        self.data.read()
        self.work, self.seconds = work, json.loads(work.tests.read_text())
        self._lines: dict[str, dict[int, list[str]]] = {}

    def tests(self, mutant: Mutant, seconds: float) -> tuple[list[list[str]], bool]:
        """(lots of node ids: those of two files near the module first; whether that is all of them)."""
        name = str(self.work.tree / mutant.module)
        if name not in self._lines:
            self._lines[name] = self.data.contexts_by_lineno(name)
        lines = self._lines[name]
        wanted = range(mutant.line, mutant.last_line + 1) if mutant.inside else lines
        nodes = {node for line in wanted for node in lines.get(line, ()) if node in self.seconds}
        by_file: dict[str, list[str]] = defaultdict(list)
        for node in sorted(nodes, key=lambda n: (self.seconds[n], n)):
            by_file[node.partition("::")[0]].append(node)
        near = sorted(
            by_file, key=lambda f: (FOLDERS.index(f.split("/")[1]), self.seconds[by_file[f][0]])
        )[:2]
        first, _ = self._affordable([n for f in near for n in by_file[f]], seconds / 4)
        # then in turn the cheapest of every file: the cheapest of all are much alike
        rank = {node: k for mine in by_file.values() for k, node in enumerate(mine)}
        others = sorted(nodes - set(first), key=lambda n: (rank[n], self.seconds[n], n))
        rest, every = self._affordable(others, seconds)
        return [lot for lot in (first, rest) if lot], every

    def _affordable(self, nodes: list[str], seconds: float) -> tuple[list[str], bool]:
        chosen, spent = [], 0.0
        for node in nodes:
            spent += self.seconds[node] + 0.02
            if chosen and spent > seconds:
                return chosen, False
            chosen.append(node)
        return chosen, True


def in_child(
    tree: Path, plugin: Any, arguments: list[str], *, cpu_s: int, wall_s: int
) -> tuple[int, str]:
    """pytest in a fork of this process, which has imported what is slow to import: (exit status, failed test)."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 5))
        said = os.open(tree.parent / "said.txt", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        for number in (1, 2):
            os.dup2(said, number)
        status = 99
        try:
            status = _tested(tree, plugin, arguments)
            os.write(write, getattr(plugin, "failed", "").encode()[:4000])
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    os.close(write)
    deadline = time.monotonic() + wall_s
    while os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() > deadline:
            os.killpg(child, 9)  # its own session: nothing but this mutant's processes
        time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, 9)  # what its tests left behind
    _, state = os.waitpid(child, 0)
    with os.fdopen(read, "rb") as answer:
        return os.waitstatus_to_exitcode(state), answer.read().decode()


def _tested(tree: Path, plugin: Any, arguments: list[str]) -> int:
    import pytest

    os.chdir(tree)
    sys.path.insert(0, str(tree))
    os.environ["PYTHONPATH"] = str(tree)
    import nsysalign

    assert Path(nsysalign.__file__).is_relative_to(tree)
    return int(
        pytest.main([*arguments, *_QUIET], plugins=[plugin() if callable(plugin) else plugin])
    )


def run_mutant(
    work: Work, mutant: Mutant, nodes: list[str], whole: Sequence[str] = ()
) -> tuple[str, str]:
    """("killed", by which test) or ("survived", ""), by single tests or `whole` files.  The copy is as it was afterwards."""
    path = work.tree / mutant.module
    original, stat = path.read_bytes(), path.stat()
    compiled = Path(py_compile.compile(str(path)))
    try:
        compiled.unlink()  # the rest stays compiled: that is half of the time
        path.write_bytes(original[: mutant.begin] + mutant.after.encode() + original[mutant.stop :])
        files = [*whole, *sorted({node.partition("::")[0] for node in nodes})]
        status, failed = in_child(
            work.tree, Chosen(nodes), ["-x", *files], cpu_s=_LONGEST_S, wall_s=4 * _LONGEST_S
        )
    finally:
        path.write_bytes(original)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        py_compile.compile(str(path))
    return ("survived", "") if status in (0, 5) else ("killed", failed or f"status {status}")


def _preload() -> None:
    """What every test imports and no mutant changes."""
    for name in ("numpy", "pandas", "pytest", "hypothesis", "rich.console", "rich.table", "click.testing", "sqlite_utils", "adbc_driver_manager", "pyarrow"):  # fmt: skip
        try:
            __import__(name)
        except ImportError:
            print(f"without {name}")


def map_tests(work: Work) -> None:
    work.folder.mkdir(parents=True, exist_ok=True)
    work.copy()
    work.coverage.unlink(missing_ok=True)
    folders = [f"tests/{name}" for name in FOLDERS]
    status, _ = in_child(
        work.tree, lambda: Mapper(work), ["-m", _SELECTED, *folders], cpu_s=3600, wall_s=7200
    )
    seconds = json.loads(work.tests.read_text())
    print(
        f"{len(seconds)} tests, {sum(seconds.values()):.0f} s of processor time (pytest: {status})"
    )


def run(work: Work, sample: Iterable[Mutant], seconds: float, files: Sequence[str] = ()) -> None:
    """Every mutant that has no result yet: against whole test `files` of the checkout, then against chosen tests."""
    done, choice = work.done(), Choice(work)
    if files:
        shutil.copytree(ROOT / "tests", work.tree / "tests", dirs_exist_ok=True)
    for mutant in sample:
        if mutant.key in done:
            continue
        lots, every = choice.tests(mutant, seconds)
        began = time.monotonic()
        status, by = run_mutant(work, mutant, [], files) if files else ("survived", "")
        for nodes in lots:
            if status == "survived":
                status, by = run_mutant(work, mutant, nodes)
        result = mutant._asdict() | {
            "key": mutant.key,
            "status": status,
            "by": by,
            "tests": sum(map(len, lots)),
        }
        result |= {"all_tests": every, "wall_s": round(time.monotonic() - began, 1)}
        with work.results.open("a") as file:
            file.write(json.dumps(result) + "\n")
        print(f"{status:9} {mutant.module}:{mutant.line} {mutant.kind} {by}", flush=True)


def again(work: Work, files: Sequence[str], only: str = "") -> None:
    """Survivors whose module is as it was copied, against whole test files."""
    shutil.copytree(ROOT / "tests", work.tree / "tests", dirs_exist_ok=True)
    left = [
        r
        for r in work.done().values()
        if r["status"] == "survived" and r["module"].startswith(only)
    ]
    for result in left:
        mutant = Mutant(**{name: result[name] for name in Mutant._fields})
        status, by = run_mutant(work, mutant, [], files)
        if status == "killed":
            with work.results.open("a") as file:
                file.write(json.dumps(result | {"status": status, "by": by}) + "\n")
        print(f"{status:9} {mutant.module}:{mutant.line} {mutant.kind} {by}", flush=True)


def show(work: Work) -> None:
    results = list(work.done().values())
    table: dict[str, Counter] = defaultdict(Counter)
    for r in results:
        table[r["module"]][r["status"]] += 1
    for module, count in sorted(table.items()):
        total = sum(count.values())
        print(f"{module:40} {total:4} {count['killed']:4} killed {count['killed'] / total:6.0%}")
    killed = sum(r["status"] == "killed" for r in results)
    print(f"{'all':40} {len(results):4} {killed:4} killed {killed / max(len(results), 1):6.1%}\n")
    for r in results:
        if r["status"] != "killed":
            known = known_reason(work, r)
            print(
                f"{r['module']}:{r['line']} {r['kind']} ({r['tests']} tests{'' if r['all_tests'] else ', more exist'})"
                f"{f': {known}' if known else ''}"
            )
            print(f"    - {r['before']}\n    + {r['after']}")


def known_reason(work: Work, result: dict[str, Any]) -> str:
    """Why nobody needs to look at this survivor again, '' if somebody should."""
    lines = (work.tree / result["module"]).read_text("utf-8").splitlines()
    text = "\n".join(lines[result["line"] - 1 : result["last_line"]])
    found = (
        why for module, part, why in SURVIVORS if result["module"].endswith(module) and part in text
    )
    return next(found, "")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("map", "run", "again", "show"))
    parser.add_argument("work", type=Path)
    parser.add_argument(
        "files", nargs="*", help="of `again`, and of `run` before all others: tests/..."
    )
    parser.add_argument("--only", default="", help="modules whose path begins so")
    parser.add_argument("--sample", type=int, default=200)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument(
        "--seconds", type=float, default=60, help="processor time of tests for one mutant"
    )
    arguments = parser.parse_intermixed_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the copy is put in order
    work = Work(arguments.work)
    if arguments.command == "show":
        show(work)
        return
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ[name] = "1"  # before numpy: a fork keeps no threads
    _preload()
    if arguments.command == "map":
        map_tests(work)
    elif arguments.command == "again":
        again(work, arguments.files, arguments.only)
    else:
        sample = draw(work.tree, arguments.sample, arguments.seed)
        run(
            work,
            [m for m in sample if m.module.startswith(arguments.only)],
            arguments.seconds,
            arguments.files,
        )


if __name__ == "__main__":
    main()
