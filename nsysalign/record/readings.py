"""Raw readings of the host's clocks -> `clock_site`, `clock_reading` and `host` lines of the event
log.

A site says where a clock was read and, if the source tells, which sites' values are subtracted
there:

    t0 = clock()            stores "t0"
    work()
    t1 = clock()            stores "t1"
    print(t1 - t0)          so a reading at line 3 is the end of an interval that begins at line 1

Times are CLOCK_MONOTONIC nanoseconds; a reading of time.time() also carries its own value.
Regions with CUDA event records inside already have their intervals; the others become `host` lines
marked implicit, and what they contain decides whether they count.
"""

from __future__ import annotations

import ast
import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from nsysalign.probe import slots

_CONTEXT, _CLOCK = (1 << slots.CONTEXT_BITS) - 1, (1 << slots.CLOCK_BITS) - 1
Tables = Mapping[str, Mapping[int, Mapping[str, Any]]]
_LONGEST = 2 << 20  # a source file larger than this is data, not a benchmark
_CASTS = {"int", "float", "round", "abs"}
_CLOCKS = {*slots.CLOCKS, "default_timer"}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def clock_lines(
    path: Path, tables: Tables, regions_with_records: set[tuple[int, int]], shorten: Callable
) -> Iterator[dict[str, Any]]:
    """The lines of one process's readings.  `tables`: what its text file says (`convert`);
    `shorten(file)` turns a file's name into the form used in logs."""
    if not path.is_file() or path.is_symlink():
        return
    readings = list(_readings(path.read_bytes(), tables, regions_with_records))
    used = {line["site"] for line in readings if line["type"] == "clock_reading"}
    yield from _sites({n: c for n, c in tables["clk"].items() if n in used}, shorten)
    yield from readings


def _readings(data: bytes, tables: Tables, with_records: set[tuple[int, int]]) -> Iterator[dict]:
    """Slots that were finished, in order; regions when they end."""
    strings = tables["str"]
    open_regions: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    usable = len(data) - len(data) % slots.READING.size
    for value, word, third in slots.READING.iter_unpack(data[:usable]):
        context, clock = word & _CONTEXT, word >> slots.CONTEXT_BITS & _CLOCK
        tid = word >> (slots.CONTEXT_BITS + slots.CLOCK_BITS)
        stack = open_regions[tid]
        if clock == slots.REGION_ENTERED:
            stack.append((context, third, value))
        elif clock == slots.REGION_LEFT:
            if stack and stack[-1][:2] == (context, third) and context in strings:
                *region, began = stack.pop()
                if tuple(region) not in with_records:
                    name = f"{strings[context]['text']}#{third}"
                    line = {"type": "host", "region": name, "t0_ns": began, "t1_ns": value}
                    yield line | {"tid": tid, "implicit": True}
        elif 1 <= clock <= len(slots.CLOCKS):
            name = slots.CLOCKS[clock - 1]
            line = {"type": "clock_reading", "site": context, "clock": name, "t_ns": value}
            line["tid"] = tid
            if clock > slots.MONOTONIC_CLOCKS:
                line["value_ns"] = third
            if stack and stack[-1][0] in strings:
                line["region"] = f"{strings[stack[-1][0]]['text']}#{stack[-1][1]}"
            yield line


@dataclass
class Use:
    """What happens to the value of one call.  Variables are texts: `8:t0` (of the function at line
    8, 0 for the module), `.start` (an attribute), behind their file's name where it is known."""

    stored: set[str] = field(default_factory=set)
    minus: set[str] = field(default_factory=set)  # what is subtracted from it
    returned: bool = False
    compared: bool = False
    kept: bool = False  # it goes somewhere else: a list, an argument


def _sites(contexts: Mapping[int, Mapping[str, Any]], shorten: Callable) -> Iterator[dict]:
    places = {
        number: _of_benchmark(context, shorten)
        if "timed" in context
        else _place(context["frames"], shorten)
        for number, context in contexts.items()
    }
    uses = [use for _, use in places.values() if use is not None]
    stored = set[str]().union(*(use.stored for use in uses))
    subtracted = set[str]().union(*(use.minus for use in uses))
    for number, (frames, use) in sorted(places.items()):
        site, *callers = (f"{shorten(frame[0])}:{frame[1]}" for frame in frames)
        file, _, _, function, first, instruction, coroutine = frames[0]
        line: dict[str, Any] = {"type": "clock_site", "number": number, "site": site}
        line |= {"callers": callers, "function": f"{shorten(file)}:{first}:{function}"}
        line |= {"position": instruction, "interleaved": coroutine}
        if use is not None:
            subtracts = use.minus & stored
            line |= {"stores": sorted(use.stored), "subtracts": sorted(subtracts)}
            unknown = use.stored and not use.compared and not use.stored & subtracted
            kept = use.kept or unknown
            line["use"] = "difference" if use.minus else "kept" if kept else "compared"
        yield {name: value for name, value in line.items() if value != [] and value is not False}


def _of_benchmark(context: Mapping[str, Any], shorten: Callable) -> tuple[list[list], Use]:
    """The same of a reading of torch.utils.benchmark.Timer: its second one subtracts the first one, which it keeps in a
    variable of its own for each call of the user's."""
    frames = context["frames"]
    file, line, *_ = frames[0]
    variable = {f"{shorten(file)}:{line}:benchmark"}
    return frames, Use(stored=variable) if context["timed"] == "begin" else Use(minus=variable)


def _place(frames: list[list], shorten: Callable) -> tuple[list[list], Use | None]:
    """(the frames from the one whose code uses the reading: helpers that return it are followed to
    their callers; the use, None if the source does not tell)."""
    for depth, (file, line, column, *_) in enumerate(frames):
        source = _source(file)
        use = source.use(line, column) if source else None
        if use is None:
            return frames[depth:], None
        if use.minus or not use.returned:
            for names in (use.stored, use.minus):
                names_here = {f"{shorten(file)}:{name}" for name in names}
                names.clear()
                names |= names_here
            return frames[depth:], use
    return frames[-1:], None


@cache
def _source(file: str) -> Source | None:
    """The parsed file, None if it cannot be read."""
    try:
        path = Path(file)
        if file.startswith("<") or not path.is_file() or path.stat().st_size > _LONGEST:
            return None
        return Source(path.read_text(encoding="utf-8", errors="replace"))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None


class Source:
    """One parsed file.  Raises SyntaxError if it is not Python.

    Follows names, attributes and subscripts that are assigned a reading (possibly scaled or
    rounded), assignments of one of them to another, helpers that return a reading, differences at
    the reading itself (`clock() - t0`, `t -= clock()` and later `t += clock()`), and those in a
    loop over tuples that are written out (`for name, a, b in (("net", t0, t1), ("rest", t1, t2))`).
    A difference that is only compared (`while clock() - t0 < 5`) is a deadline, not a measurement.
    Nothing is guessed, and no code is run.
    """

    def __init__(self, text: str) -> None:
        nodes = list(ast.walk(ast.parse(text)))
        self._parent = {child: node for node in nodes for child in ast.iter_child_nodes(node)}
        self._calls: dict[int, list[ast.Call]] = defaultdict(list)
        #: Per function: the names that it binds, and those that it declares global or nonlocal.
        self._bound: dict[ast.AST | None, set[str]] = defaultdict(set)
        self._outer: dict[ast.AST | None, set[str]] = defaultdict(set)
        for node in nodes:
            match node:
                case ast.Call():
                    self._calls[node.lineno].append(node)
                case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                    self._bound[next(self._functions(node), None)].add(name)
                case ast.Global(names=names) | ast.Nonlocal(names=names):
                    self._outer[next(self._functions(node), None)] |= {*names}
        self._copies: list[tuple[str, str]] = []  # (to, from)
        self._differences: list[tuple[str, str, bool]] = []  # (left, right, only compared)
        self._returns: set[str] = set()
        for node in nodes:
            match node:
                case ast.Assign(targets=targets, value=value):
                    for target in targets:
                        self._copies += self._both_named(self._assigned(target, value))
                case ast.BinOp(op=ast.Sub(), left=left, right=right):
                    compared = self._is_compared(node)
                    pairs = self._both_named([(left, right), *self._written_out(node)])
                    self._differences += [(*pair, compared) for pair in pairs]
                case ast.Return(value=value) if value is not None:
                    self._returns |= self._names([value])

    def use(self, line: int, column: int) -> Use | None:
        """What happens to the value of the call that begins there (column -1: unknown); None if the
        call cannot be identified."""
        calls = [c for c in self._calls.get(line, ()) if column in (-1, c.col_offset)]
        if (
            len(calls) > 1
        ):  # also of `a().b()`, where both begin: the clock is the longer one's name
            clocks = [c for c in calls if _last_name(c.func) in _CLOCKS]
            calls = clocks if column == -1 else clocks or calls[:1]
        if len(calls) != 1:
            return None
        use, value = Use(), calls[0]
        while True:
            match above := self._parent.get(value):
                case (
                    ast.BinOp(op=ast.Mult() | ast.Div() | ast.FloorDiv())
                    | ast.UnaryOp(op=ast.USub())
                    | ast.IfExp()
                ):
                    value = above
                case ast.Call(func=function, args=arguments) if (
                    value in arguments and _last_name(function) in _CASTS
                ):
                    value = above
                case _:
                    break
        self._end(value, above, use)
        while copies := {to for to, from_ in self._copies if from_ in use.stored} - use.stored:
            use.stored |= copies
        for left, right, compared in self._differences:
            if left in use.stored and compared:
                use.compared = True
            elif left in use.stored:
                use.minus.add(right)
        use.returned |= bool(use.stored & self._returns)
        return use

    def _end(self, value: ast.AST, above: ast.AST, use: Use) -> None:
        """`value` holds a reading and is part of `above`."""
        match above:
            case ast.BinOp(op=ast.Sub(), left=left, right=right):
                name = self._name(right) if left is value else None
                if left is value and not self._is_compared(above):
                    use.minus.add(name or "?")  # no variable: `clock() - starts.pop()`
                else:
                    use.compared = right is value or self._is_compared(above)
                    use.kept = not use.compared
            case ast.NamedExpr(target=target) | ast.AnnAssign(target=target):
                use.stored |= self._names([target])
            case ast.Assign(targets=targets):
                use.stored |= self._names(targets)
            case ast.Tuple() | ast.Dict() if isinstance(self._parent[above], ast.Assign):
                for target in self._parent[above].targets:
                    pairs = self._assigned(target, above)
                    use.stored |= self._names([to for to, from_ in pairs if from_ is value])
                use.kept = not use.stored
            case ast.AugAssign(op=ast.Sub(), target=target):  # t -= clock(), later t += clock()
                use.stored |= self._names([target])
            case ast.AugAssign(op=ast.Add(), target=target):
                use.minus |= self._names([target])
            case ast.Return() | ast.Lambda():
                use.returned = True
            case ast.BinOp() | ast.Compare() | ast.While() | ast.If() | ast.Assert() | ast.BoolOp():
                use.compared = True  # a sum as well: clock() + 5 is a deadline
            case _:
                use.kept = not isinstance(above, ast.Expr)

    def _assigned(self, target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
        """(variable, what it gets) of an assignment: a, t0 and b, t1 of `a, b = t0, t1`; d["a"], t0
        of `d = {"a": t0}`."""
        match target, value:
            case ast.Tuple(elts=targets), ast.Tuple(elts=values) if len(targets) == len(values):
                for to, from_ in zip(targets, values, strict=True):
                    yield from self._assigned(to, from_)
            case ast.Name(), ast.Dict(keys=keys, values=values):
                for key, from_ in zip(keys, values, strict=True):
                    if key is not None:
                        to = ast.Subscript(value=target, slice=key)
                        self._parent[to] = self._parent[target]
                        yield to, from_
            case _:
                yield target, value

    def _written_out(self, difference: ast.BinOp) -> Iterator[tuple[ast.expr, ast.expr]]:
        """(left, right) of a difference of two variables of a loop over tuples that are written out, for each tuple:
        of `b - a` in `for a, b in ((t0, t1), (t1, t2))` they are t1, t0 and t2, t1."""
        above: ast.AST | None = difference
        while (above := self._parent.get(above)) is not None:
            for loop in getattr(above, "generators", [above]):
                if not isinstance(loop, (ast.For, ast.comprehension)):
                    continue
                for row in _rows(loop.iter):
                    bound = {
                        ast.unparse(to): from_ for to, from_ in self._assigned(loop.target, row)
                    }
                    sides = [bound.get(ast.unparse(s)) for s in (difference.left, difference.right)]
                    if sides[0] is not None and sides[1] is not None:
                        yield sides[0], sides[1]

    def _both_named(self, pairs: Iterable[tuple[ast.expr, ast.expr]]) -> list[tuple[str, str]]:
        """The variables that the two expressions of each pair name, of those pairs in which both do."""
        names = [(self._name(first), self._name(second)) for first, second in pairs]
        return [(first, second) for first, second in names if first and second]

    def _is_compared(self, node: ast.AST) -> bool:
        """Whether an expression is only used in a comparison or a condition."""
        while isinstance(above := self._parent.get(node), ast.expr):
            if isinstance(above, ast.Compare):
                return True
            if isinstance(above, ast.Call) and _last_name(above.func) not in _CASTS:
                return False
            node = above
        return isinstance(above, (ast.While, ast.If)) and above.test is node

    def _names(self, targets: list[ast.expr]) -> set[str]:
        return {name for target in targets if (name := self._name(target)) is not None}

    def _name(self, node: ast.AST) -> str | None:
        """The variable that an expression names, None for all other expressions."""
        match node:
            case ast.Name(id=name):  # of the function that binds it, seen from where it stands
                binding = (
                    f.lineno
                    for f in self._functions(node)
                    if name in self._bound[f] - self._outer[f]
                )
                return f"{next(binding, 0)}:{name}"
            case ast.Attribute(attr=name):
                return f".{name}"
            case ast.Subscript():  # only a digest: the brackets may contain anything
                scope = next((f.lineno for f in self._functions(node)), 0)
                text = hashlib.blake2s(ast.unparse(node).encode(), digest_size=6).hexdigest()
                return f"{scope}:[{text}]"
        return None

    def _functions(self, node: ast.AST | None) -> Iterator[Any]:
        """The functions that hold a node, the innermost first."""
        while (node := self._parent.get(node)) is not None:
            if isinstance(node, _FUNCTIONS):
                yield node


def _rows(values: ast.expr) -> list[ast.expr]:
    """What a loop is over, if that is written out: of `(a, b)` and `[a, b]`, a and b; of `{"a": b}.items()`, ("a", b)."""
    match values:
        case ast.Tuple(elts=rows) | ast.List(elts=rows):
            return rows
        case ast.Call(func=ast.Attribute(value=ast.Dict(keys=keys, values=values), attr="items")):
            return [ast.Tuple(elts=[key, value]) for key, value in zip(keys, values, strict=True)]
    return []


def _last_name(node: ast.AST) -> str:
    return getattr(node, "attr", None) or getattr(node, "id", "")
