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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from nsysalign.probe import slots

_CONTEXT, _CLOCK = (1 << slots.CONTEXT_BITS) - 1, (1 << slots.CLOCK_BITS) - 1
_LONGEST = 2 << 20  # a source file larger than this is data, not a benchmark
#: (kind, scope, text): a name in a function (the line of its `def`, 0 for the module), an
#: attribute, a subscript.
Key = tuple[str, int, str]
_SCALES = (ast.Mult, ast.Div, ast.FloorDiv)
_CASTS = {"int", "float", "round", "abs"}
_CLOCKS = {*slots.CLOCKS, "default_timer"}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_CONDITIONS = (ast.Compare, ast.While, ast.If, ast.Assert, ast.BoolOp)


def clock_lines(
    path: Path, texts: Any, regions_with_records: set[tuple[int, int]], shorten: Callable
) -> Iterator[dict[str, Any]]:
    """The lines of one process's readings.  `texts`: what its text file says (`convert`);
    `shorten(file)` turns a file's name into the form used in logs."""
    if not path.is_file() or path.is_symlink():
        return
    readings = list(_readings(path.read_bytes(), texts.threads, texts.strings))
    used = {line["site"] for line in readings if line["type"] == "clock_reading"}
    yield from _sites({n: c for n, c in texts.clock_contexts.items() if n in used}, shorten)
    for line in readings:
        if line["type"] == "clock_reading" or line.pop("key") not in regions_with_records:
            yield line


def _readings(
    data: bytes, threads: Mapping[int, int], strings: Mapping[int, str]
) -> Iterator[dict[str, Any]]:
    """Slots that were finished, in order; regions when they end."""
    open_regions: dict[int, list[tuple[int, int, int]]] = {}
    usable = len(data) - len(data) % slots.READING.size
    for value, word, third in slots.READING.iter_unpack(data[:usable]):
        if word == 0:
            continue
        context, clock = word & _CONTEXT, word >> slots.CONTEXT_BITS & _CLOCK
        tid = threads.get(word >> (slots.CONTEXT_BITS + slots.CLOCK_BITS), -1)
        stack = open_regions.setdefault(tid, [])
        if clock == slots.REGION_ENTERED:
            stack.append((context, third, value))
        elif clock == slots.REGION_LEFT:
            if stack and stack[-1][:2] == (context, third) and context in strings:
                *key, began = stack.pop()
                line = {"type": "host", "key": tuple(key), "region": f"{strings[context]}#{third}"}
                yield line | {"t0_ns": began, "t1_ns": value, "tid": tid, "implicit": True}
        elif 1 <= clock <= len(slots.CLOCKS):
            name = slots.CLOCKS[clock - 1]
            line = {"type": "clock_reading", "site": context, "clock": name, "t_ns": value}
            line["tid"] = tid
            if clock > slots.MONOTONIC_CLOCKS:
                line["value_ns"] = third
            if stack and stack[-1][0] in strings:
                line["region"] = f"{strings[stack[-1][0]]}#{stack[-1][1]}"
            yield line


@dataclass(frozen=True)
class _Place:
    """Where a reading's value reaches code that uses it: a frame of its context, and the use.
    Variables are texts: `bench.py:8:t0`, an attribute `bench.py:.start`."""

    depth: int
    use: Use | None = None  # None: the source does not tell
    stores: frozenset[str] = frozenset()
    subtracts: frozenset[str] = frozenset()


def _sites(contexts: Mapping[int, Mapping[str, Any]], shorten: Callable) -> Iterator[dict]:
    places = {number: _place(context["frames"], shorten) for number, context in contexts.items()}
    stored = frozenset().union(*(p.stores for p in places.values()))
    subtracted = frozenset().union(*(p.subtracts for p in places.values()))
    for number, context in sorted(contexts.items()):
        frames, place = context["frames"], places[number]
        line: dict[str, Any] = {"type": "clock_site", "number": number}
        shown = [f"{shorten(f[0])}:{f[1]}" for f in frames[place.depth :]]
        if shown:
            line["site"] = shown[0]
        if shown[1:]:
            line["callers"] = shown[1:]
        if frames:
            file, _, _, function, first, instruction, *coroutine = frames[place.depth]
            line |= {"function": f"{shorten(file)}:{first}:{function}", "position": instruction}
            if any(coroutine):
                line["interleaved"] = True
        if place.use is not None:
            subtracts = place.subtracts & stored
            texts = {"stores": sorted(place.stores), "subtracts": sorted(subtracts)}
            line |= {k: v for k, v in texts.items() if v}
            line["use"] = place.use.word(bool(subtracts), bool(place.stores & subtracted))
        yield line


def _place(frames: list[list], shorten: Callable) -> _Place:
    """Follow helpers that return their reading to the frame that calls them."""
    for depth, (file, line, column, *_) in enumerate(frames):
        source = _source(file)
        use = source.use(line, column) if source else None
        if use is None:
            return _Place(depth)
        if use.minus or not use.returned:
            texts = (
                {_text(file, key, shorten) for key in keys} for keys in (use.stored, use.minus)
            )
            return _Place(depth, use, *map(frozenset, texts))
    return _Place(max(len(frames) - 1, 0))


def _text(file: str, key: Key, shorten: Callable) -> str:
    """A variable as text.  Of a subscript only a digest: the brackets may contain anything."""
    kind, scope, text = key
    if kind == "attribute":
        return f"{shorten(file)}:.{text}"
    if kind == "subscript":
        text = f"[{hashlib.blake2s(text.encode(), digest_size=6).hexdigest()}]"
    return f"{shorten(file)}:{scope}:{text}"


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


@dataclass
class Use:
    """What happens to the value of one call.  `minus`: what is subtracted from it, as keys."""

    stored: set[Key] = field(default_factory=set)
    minus: set[Key] = field(default_factory=set)
    returned: bool = False
    compared: bool = False
    kept: bool = False  # it goes somewhere else: a list, an argument

    def word(self, subtracts: bool, subtracted: bool) -> str:
        """In a word.  `subtracts`: others from it; `subtracted`: it from others."""
        if subtracts:
            return "difference"
        if self.kept or self.minus:  # minus: what is subtracted comes from an unknown place
            return "kept"
        if self.compared:
            return "compared"
        if subtracted:
            return "start"
        return "kept" if self.stored else "unused"


class Source:
    """One parsed file.  Raises SyntaxError if it is not Python.

    Follows names, attributes and subscripts that are assigned a reading (possibly scaled or
    rounded), assignments of one of them to another, helpers that return a reading, and differences
    at the reading itself (`clock() - t0`).  A difference that is only compared (`while clock() - t0
    < 5`) is a deadline, not a measurement.  Nothing is guessed, and no code is run.
    """

    def __init__(self, text: str) -> None:
        tree = ast.parse(text)
        self._parent: dict[ast.AST, ast.AST] = {}
        self._calls: dict[int, list[ast.Call]] = {}
        #: Per function: the names that it binds, without those that it declares global or nonlocal.
        self._bound: dict[ast.AST, set[str]] = {}
        self._copies: list[tuple[Key, Key]] = []  # (to, from)
        self._differences: list[tuple[Key, Key, bool]] = []  # (left, right, only compared)
        self._returns: set[Key] = set()
        self._visit(tree, None)
        for node in ast.walk(tree):
            if isinstance(node, (ast.Global, ast.Nonlocal)):
                for function in self._functions(node):
                    self._bound[function] -= set(node.names)
                    break
        for node in ast.walk(tree):
            self._learn(node)

    def _visit(self, node: ast.AST, function: ast.AST | None) -> None:
        if isinstance(node, _FUNCTIONS):
            function, a = node, node.args
            named = [*a.posonlyargs, *a.args, *a.kwonlyargs]
            self._bound[node] = {x.arg for x in (*named, a.vararg, a.kwarg) if x is not None}
        elif isinstance(node, ast.Call):
            self._calls.setdefault(node.lineno, []).append(node)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and function:
            self._bound[function].add(node.id)
        for child in ast.iter_child_nodes(node):
            self._parent[child] = node
            self._visit(child, function)

    def use(self, line: int, column: int) -> Use | None:
        """What happens to the value of the call that begins there (column -1: unknown); None if the
        call cannot be identified."""
        here = [c for c in self._calls.get(line, ()) if column in (-1, c.col_offset)]
        if len(here) > 1:  # also of `a().b()`, where both begin: the clock is the longer one's name
            clocks = [c for c in here if _last_name(c.func) in _CLOCKS]
            here = clocks if column == -1 else clocks or here[:1]
        return self._follow(here[0]) if len(here) == 1 else None

    def _follow(self, call: ast.Call) -> Use:
        use, value = Use(), call
        while True:
            above = self._parent.get(value)
            scaled = isinstance(above, ast.BinOp) and isinstance(above.op, _SCALES)
            cast = isinstance(above, ast.Call) and value in above.args
            cast = cast and _last_name(above.func) in _CASTS
            if not (scaled or cast or isinstance(above, (ast.IfExp, ast.Await))):
                break
            value = above
        self._end(value, above, use)
        while more := {to for to, from_ in self._copies if from_ in use.stored} - use.stored:
            use.stored |= more
        for left, right, compared in self._differences:
            if left in use.stored and compared:
                use.compared = True
            elif left in use.stored:
                use.minus.add(right)
        use.returned |= bool(use.stored & self._returns)
        return use

    def _end(self, value: ast.AST, above: ast.AST | None, use: Use) -> None:
        """`value` holds a reading and is part of `above`."""
        match above:
            case ast.BinOp(op=ast.Sub(), left=left, right=right):
                key = self._key(right) if left is value else None
                if key is not None and not self._is_compared(above):
                    use.minus.add(key)
                else:
                    use.compared = right is value or self._is_compared(above)
                    use.kept = not use.compared
            case ast.NamedExpr(target=target) | ast.AnnAssign(target=target):
                use.stored |= self._keys([target])
            case ast.Assign(targets=targets):
                use.stored |= self._keys(targets)
            case ast.Tuple(elts=elements) if isinstance(self._parent.get(above), ast.Assign):
                for target in self._parent[above].targets:
                    if isinstance(target, ast.Tuple) and len(target.elts) == len(elements):
                        use.stored |= self._keys([target.elts[elements.index(value)]])
            case ast.Return() | ast.Lambda():
                use.returned = True
            case ast.BinOp():  # a sum as well: clock() + 5 is a deadline
                use.compared = True
            case _ if isinstance(above, _CONDITIONS):
                use.compared = True
            case _:
                use.kept = not isinstance(above, ast.Expr)

    def _learn(self, node: ast.AST) -> None:
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    pairs = [(target, value)]
                    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                        pairs = zip(target.elts, value.elts)  # noqa: B905  a starred one may be there
                    keys = [(self._key(to), self._key(from_)) for to, from_ in pairs]
                    self._copies += [pair for pair in keys if None not in pair]
            case ast.BinOp(op=ast.Sub(), left=left, right=right):
                keys = self._key(left), self._key(right)
                if None not in keys:
                    self._differences.append((*keys, self._is_compared(node)))
            case ast.Return(value=value) if value is not None:
                self._returns |= self._keys([value])

    def _is_compared(self, node: ast.AST) -> bool:
        """Whether an expression is only used in a comparison or a condition."""
        while isinstance(above := self._parent.get(node), ast.expr):
            if isinstance(above, ast.Compare):
                return True
            if isinstance(above, ast.Call) and _last_name(above.func) not in _CASTS:
                return False
            node = above
        return isinstance(above, (ast.While, ast.If)) and above.test is node

    def _keys(self, targets: list[ast.expr]) -> set[Key]:
        return {key for t in targets if (key := self._key(t)) is not None}

    def _key(self, node: ast.AST) -> Key | None:
        """The place that an expression names, None for all other expressions."""
        match node:
            case ast.Name(id=name):  # of the function that binds it, seen from where it stands
                binding = (f.lineno for f in self._functions(node) if name in self._bound[f])
                return ("name", next(binding, 0), name)
            case ast.Attribute(attr=name):
                return ("attribute", 0, name)
            case ast.Subscript():
                scope = next((f.lineno for f in self._functions(node)), 0)
                return ("subscript", scope, ast.unparse(node))
        return None

    def _functions(self, node: ast.AST | None) -> Iterator[ast.AST]:
        """The functions that hold a node, the innermost first."""
        while (node := self._parent.get(node)) is not None:
            if isinstance(node, _FUNCTIONS):
                yield node


def _last_name(node: ast.AST) -> str:
    return getattr(node, "attr", None) or getattr(node, "id", "")
