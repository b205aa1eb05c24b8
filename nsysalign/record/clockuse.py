"""What a program does with its clock readings, according to its source: which one is subtracted
from which.

    t0 = clock()            stores "t0"
    work()
    t1 = clock()            stores "t1"
    print(t1 - t0)          so a reading at line 3 is the end of an interval that begins at line 1

This follows names, attributes and subscripts that are assigned a reading (possibly scaled or
rounded), assignments of one of them to another, helpers that return a reading, and differences at
the reading itself (`clock() - t0`). A difference that is only compared (`while clock() - t0 < 5`)
is a deadline, not a measurement.  What cannot be followed is reported as such; nothing is guessed
here, and no code is run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

#: (kind, scope, text): a name in a function (the line of its `def`, 0 for the module), an
#: attribute, a subscript.
Key = tuple[str, int, str]

_SCALES = (ast.Mult, ast.Div, ast.FloorDiv)
_CASTS = {"int", "float", "round", "abs"}
_CLOCKS = {
    "time",
    "time_ns",
    "perf_counter",
    "perf_counter_ns",
    "monotonic",
    "monotonic_ns",
    "default_timer",
}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass
class Use:
    """What happens to the value of one call.  `minus`: what is subtracted from it, as keys."""

    stored: set[Key] = field(default_factory=set)
    minus: set[Key] = field(default_factory=set)
    returned: bool = False
    compared: bool = False
    kept: bool = False  # it goes somewhere else: a list, an argument


class Source:
    """One parsed file.  Raises SyntaxError if it is not Python."""

    def __init__(self, text: str) -> None:
        tree = ast.parse(text)
        self._parent: dict[ast.AST, ast.AST] = {}
        self._calls: dict[int, list[ast.Call]] = {}
        for node in ast.walk(tree):
            for child in ast.iter_child_nodes(node):
                self._parent[child] = node
            if isinstance(node, ast.Call):
                self._calls.setdefault(node.lineno, []).append(node)
        self._bound = _bindings(tree)
        self._parameters = {
            f.lineno: [x.arg for x in (*f.args.posonlyargs, *f.args.args, *f.args.kwonlyargs)]
            for f in self._bound
        }
        self._copies: list[tuple[Key, Key]] = []  # (to, from)
        self._differences: list[tuple[Key, Key, bool]] = []  # (left, right, only compared)
        self._returns: set[Key] = set()
        for node in ast.walk(tree):
            self._learn(node)

    def use(self, line: int, column: int) -> Use | None:
        """What happens to the value of the call that begins there (column -1: unknown); None if the
        call cannot be identified."""
        here = [c for c in self._calls.get(line, ()) if column in (-1, c.col_offset)]
        if column == -1 and len(here) > 1:
            here = [c for c in here if _last_name(c.func) in _CLOCKS]
        if (
            len(here) != 1 and column >= 0
        ):  # `a().b()`: both calls begin there; the clock is the last name of the longer one
            here = [c for c in here if _last_name(c.func) in _CLOCKS] or here[:1]
        return self._follow(here[0]) if len(here) == 1 else None

    def copies_of(self, keys: set[Key]) -> set[Key]:
        """These places and all places that one of them is copied to."""
        out = set(keys)
        while more := {to for to, from_ in self._copies if from_ in out} - out:
            out |= more
        return out

    def parameter(self, key: Key) -> tuple[int, str] | None:
        """(place, name) of the parameter that a name stands for, None if it is not a parameter."""
        kind, scope, text = key
        names = self._parameters.get(scope, ()) if kind == "name" else ()
        return (names.index(text), text) if text in names else None

    def argument(self, line: int, column: int, parameter: tuple[int, str]) -> Key | None:
        """The place whose value the call that begins there passes for a parameter, None if that
        cannot be determined."""
        place, name = parameter
        for call in self._calls.get(line, ()):
            if column not in (-1, call.col_offset) or any(
                isinstance(a, ast.Starred) for a in call.args
            ):
                continue
            named = [k.value for k in call.keywords if k.arg == name]
            given = named or call.args[place : place + 1]
            if given and (key := self._key(given[0])) is not None:
                return key
        return None

    def _follow(self, call: ast.Call) -> Use:
        use = Use()
        value: ast.AST = call
        while True:
            above = self._parent.get(value)
            if isinstance(above, ast.BinOp) and isinstance(above.op, ast.Sub):
                key = self._key(above.right) if above.left is value else None
                if key is None or self._is_compared(above):
                    use.compared = use.compared or self._is_compared(above) or above.right is value
                    use.kept = not use.compared
                else:
                    use.minus.add(key)
                break
            scaled = isinstance(above, ast.BinOp) and isinstance(above.op, _SCALES)
            cast = (
                isinstance(above, ast.Call)
                and _last_name(above.func) in _CASTS
                and value in above.args
            )
            if scaled or cast or isinstance(above, (ast.IfExp, ast.Await)):
                value = above
                continue
            self._end(value, above, use)
            break
        stored = self.copies_of(use.stored)
        for left, right, compared in self._differences:
            if left in stored:
                if compared:
                    use.compared = True
                else:
                    use.minus.add(right)
        use.returned = use.returned or bool(stored & self._returns)
        use.stored = stored
        return use

    def _end(self, value: ast.AST, above: ast.AST | None, use: Use) -> None:
        """`value` holds a reading and is part of `above`, which does no arithmetic with it."""
        if isinstance(above, ast.NamedExpr):
            use.stored |= self._keys([above.target])
        elif isinstance(above, ast.Assign) and above.value is value:
            use.stored |= self._keys(above.targets)
        elif isinstance(above, ast.AnnAssign):
            use.stored |= self._keys([above.target])
        elif isinstance(above, ast.Tuple) and isinstance(
            outer := self._parent.get(above), ast.Assign
        ):
            place = above.elts.index(value)
            for target in outer.targets:
                if isinstance(target, ast.Tuple) and len(target.elts) == len(above.elts):
                    use.stored |= self._keys([target.elts[place]])
        elif isinstance(above, (ast.Return, ast.Lambda)):
            use.returned = True
        elif isinstance(above, (ast.Compare, ast.While, ast.If, ast.Assert, ast.BoolOp, ast.BinOp)):
            use.compared = True  # a sum as well: clock() + 5 is a deadline
        elif not isinstance(above, ast.Expr):
            use.kept = True

    def _learn(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                pairs = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(target.elts, node.value.elts))  # noqa: B905  a starred one may be among them
                for to, from_ in pairs:
                    keys = self._key(to), self._key(from_)
                    if None not in keys:
                        self._copies.append(keys)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
            left, right = self._key(node.left), self._key(node.right)
            if left is not None and right is not None:
                self._differences.append((left, right, self._is_compared(node)))
        elif isinstance(node, ast.Return) and node.value is not None:
            key = self._key(node.value)
            if key is not None:
                self._returns.add(key)

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
        if isinstance(node, ast.Name):
            return ("name", self._scope(node), node.id)
        if isinstance(node, ast.Attribute):
            return ("attribute", 0, node.attr)
        if isinstance(node, ast.Subscript):
            return ("subscript", self._function(node), ast.unparse(node))
        return None

    def _function(self, node: ast.AST) -> int:
        """First line of the function that holds a node, 0 for the module's own code."""
        return next((f.lineno for f in self._functions(node)), 0)

    def _functions(self, node: ast.AST) -> Iterator[ast.AST]:
        while (node := self._parent.get(node)) is not None:
            if isinstance(node, _FUNCTIONS):
                yield node

    def _scope(self, name: ast.Name) -> int:
        """The function in which a name is bound, seen from where it stands."""
        for function in self._functions(name):
            bound, elsewhere = self._bound.get(function, (set(), set()))
            if name.id in bound and name.id not in elsewhere:
                return function.lineno
        return 0


def _bindings(tree: ast.AST) -> dict[ast.AST, tuple[set[str], set[str]]]:
    """Per function: the names that it binds, and those of them that it declares global or
    nonlocal."""
    out: dict[ast.AST, tuple[set[str], set[str]]] = {}

    def visit(node: ast.AST, function: ast.AST | None) -> None:
        if isinstance(node, _FUNCTIONS):
            function = node
            a = node.args
            every = [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))]
            out[node] = ({x.arg for x in every}, set())
        elif function is not None:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                out[function][0].add(node.id)
            elif isinstance(node, (ast.Global, ast.Nonlocal)):
                out[function][1].update(node.names)
        for child in ast.iter_child_nodes(node):
            visit(child, function)

    visit(tree, None)
    return out


def _last_name(node: ast.AST) -> str:
    return (
        node.attr
        if isinstance(node, ast.Attribute)
        else node.id
        if isinstance(node, ast.Name)
        else ""
    )
