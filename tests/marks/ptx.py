"""A GPU for the PTX of marks.cuh: a warp's lanes go their own ways and meet again, memory is one
buffer and nothing else.

Lanes at the same place run together; which group runs next is the one that is furthest behind (as
compilers arrange it), or any (as hardware may choose).  Or they also meet inside a function that
each called from another place: ptxas gives both calls the same barriers, and an H100 was seen to
bring both sides of a branch together there.  An instruction that synchronises waits for all lanes
of its mask; if none can go on, that is a deadlock.  Every access outside of the buffer is an error.
What ptxas makes of the PTX is not seen here.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

WHOLE = 0xFFFFFFFF
_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
}  # fmt: skip
_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "and": lambda a, b: a & b,
    "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b, "shl": lambda a, b: a << b if b < 64 else 0,
    "shr": lambda a, b: a >> b, "min": min, "max": max,
}  # fmt: skip


@dataclass(frozen=True)
class Instruction:
    """`guard`: (register, whether it is negated) or None; names are unique in their function."""

    op: str
    operands: tuple[str, ...]
    guard: tuple[str, bool] | None


@dataclass
class Function:
    """Labels are places in `code`."""

    name: str
    parameters: list[str]
    code: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)


def parse(text: str) -> dict[str, Function]:
    """The functions of a module by their names."""
    text = re.sub(r"//.*", "", text)
    out = {}
    head = re.compile(
        r"\.(?:func|entry)\s+(?:\([^)]*\)\s*)?([\w$]+)\s*\(([^)]*)\)\s*(\{|;)", re.DOTALL
    )
    for found in head.finditer(text):
        if found[3] == "{":
            names = re.findall(r"([\w$]+)(?:\[\d+\])?\s*(?:,|$)", found[2].strip())
            out[found[1]] = _body(Function(found[1], names), text, found.end())
    return out


def _body(made: Function, text: str, at: int) -> Function:
    """Names of inner scopes get the scope's number, so that no two of them are one."""
    scopes: list[tuple[int, set[str]]] = []
    pending: list[tuple[int, str, tuple[int, ...]]] = []
    count, depth = 0, 1
    for token in re.finditer(
        r"\s*(\{(?=\s*\.reg|\s*//|\s*$|\s*\n)|\}(?!\s*[;,])|[\w$]+:|[^;]+?;)", text[at:]
    ):
        what = token[1].strip()
        if what == "{":
            count, depth = count + 1, depth + 1
            scopes.append((count, set()))
        elif what == "}":
            depth -= 1
            if not depth:
                break
            scopes.pop()
        elif what.endswith(":"):
            made.labels[_named(what[:-1], scopes, new=True)] = len(made.code)
        elif what.startswith("."):
            for name in re.findall(
                r"([\w$%]+)\s*(?=[,;])", re.sub(r"^\.\w+(?:\s*\.\w+)*\s", "", what)
            ):
                if scopes:
                    scopes[-1][1].add(name)
        else:
            made.code.append(_instruction(what, scopes))
            pending.append((len(made.code) - 1, what, tuple(n for n, _ in scopes)))
    for place, _, chain in pending:
        found = made.code[place]
        if found.op.startswith("bra"):
            name = next(
                (
                    f"{found.operands[0]}#{n}"
                    for n in reversed(chain)
                    if f"{found.operands[0]}#{n}" in made.labels
                ),
                found.operands[0],
            )
            made.code[place] = Instruction(found.op, (name,), found.guard)
    return made


def _named(name: str, scopes: list[tuple[int, set[str]]], new: bool = False) -> str:
    if new and scopes and not name.startswith("$"):
        return f"{name}#{scopes[-1][0]}"
    for number, names in reversed(scopes):
        if name in names:
            return f"{name}#{number}"
    return name


def _instruction(text: str, scopes: list[tuple[int, set[str]]]) -> Instruction:
    text = " ".join(text.rstrip(";").split())
    guard = None
    if text.startswith("@"):
        first, text = text.split(" ", 1)
        guard = (_named(first.lstrip("@!"), scopes), "!" in first)
    op, _, rest = text.partition(" ")
    if op == "call.uni":
        found = re.match(r"(?:\((\w+)\),\s*)?([\w$]+)\s*,\s*\((.*)\)", rest)
        names = [_named(n.strip(), scopes) for n in found[3].split(",") if n.strip()]
        return Instruction(
            op, (_named(found[1], scopes) if found[1] else "", found[2], *names), guard
        )
    if op.startswith("bra"):
        return Instruction(op, (rest.strip(),), guard)
    operands = [o.strip() for o in re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s][^,]*", rest)]
    rename = lambda o: re.sub(r"[\w$%.]+", lambda m: _named(m[0], scopes), o)  # noqa: E731
    return Instruction(op, tuple(rename(o) for o in operands), guard)


@dataclass
class Frame:
    """One call of a lane."""

    function: Function
    at: int = 0
    values: dict[str, Any] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)  # parameters
    into: tuple[str, dict[str, int]] | None = None


@dataclass
class Lane:
    """One thread."""

    number: int
    stack: list[Frame]
    special: dict[str, int]

    @property
    def place(self) -> tuple[tuple[int, int, str], ...]:
        return tuple((f.at, 0, f.function.name) for f in self.stack)

    @property
    def inner_place(self) -> tuple[int, int, str]:
        """Wherever it was called from."""
        return len(self.stack), self.stack[-1].at, self.stack[-1].function.name


class Machine:
    """Runs kernels over one buffer.  `order`: "behind", "any" or "meeting"."""

    def __init__(
        self, text: str, base: int, memory: bytearray, seed: int = 0, order: str = "behind"
    ) -> None:
        self.functions, self.base, self.memory = parse(text), base, memory
        self.random, self.order, self.steps = random.Random(seed), order, 0
        self.most = 300_000

    def launch(
        self,
        name: str,
        arguments: list[int],
        blocks: int,
        threads: int,
        grid: int = 1,
        sms: int = 4,
    ) -> None:
        """Every warp to its end; warps take turns at random."""
        function, warps = self.functions[name], []
        for block in range(blocks):
            special = {
                "%smid": block % sms,
                "%gridid": grid,
                "%ctaid.x": block,
                "%nctaid.x": blocks,
                "%ntid.x": threads,
            }
            special |= {
                "%ctaid.y": 0,
                "%ctaid.z": 0,
                "%tid.y": 0,
                "%tid.z": 0,
                "%ntid.y": 1,
                "%ntid.z": 1,
            }
            for first in range(0, threads, 32):
                lanes = []
                for n in range(first, min(first + 32, threads)):
                    frame = Frame(
                        function, memory=dict(zip(function.parameters, arguments, strict=True))
                    )
                    own = {"%tid.x": n, "%laneid": n - first, "%lanemask_eq": 1 << n - first}
                    lanes.append(Lane(n - first, [frame], special | own))
                warps.append(lanes)
        while warps:
            warp = self.random.choice(warps)
            for _ in range(20):
                if warp:
                    self._turn(warp)
            warps = [w for w in warps if w]

    def _turn(self, warp: list[Lane]) -> None:
        groups: dict[Any, list[Lane]] = {}
        meeting = self.order == "meeting"
        for lane in warp:
            groups.setdefault(lane.inner_place if meeting else lane.place, []).append(lane)
        places = sorted(groups) if meeting else sorted(groups, key=lambda p: (-len(p), p))
        if self.order == "any":
            self.random.shuffle(places)
        alive = {lane.number for lane in warp}
        for place in places:
            if self._ready(groups[place], alive):
                self._run(groups[place], warp)
                return
        raise AssertionError("deadlock: every group waits for lanes that are elsewhere")

    def _ready(self, group: list[Lane], alive: set[int]) -> bool:
        frame = group[0].stack[-1]
        now = frame.function.code[frame.at] if frame.at < len(frame.function.code) else None
        if now is None or ".sync" not in now.op:
            return True
        here = {lane.number for lane in group}
        for lane in group:
            mask = self._value(lane, now.operands[-1])
            if not {n for n in range(32) if mask >> n & 1} <= here | (set(range(32)) - alive):
                return False
        return True

    def _run(self, group: list[Lane], warp: list[Lane]) -> None:
        """Until the lanes may part or meet others."""
        frame = group[0].stack[-1]
        stops = set(frame.function.labels.values())
        while True:
            self.steps += 1
            assert self.steps < self.most, "it does not come to an end"
            at = group[0].stack[-1].at
            now = group[0].stack[-1].function.code[at]
            control = now.op.split(".")[0] in ("bra", "call", "ret", "exit") or ".sync" in now.op
            for lane in group:
                lane.stack[-1].at += 1
            active = [
                x
                for x in group
                if now.guard is None or bool(x.stack[-1].values[now.guard[0]]) != now.guard[1]
            ]
            if active:
                self._execute(now, active, warp)
            code, following = frame.function.code, group[0].stack[-1].at
            if (
                control
                or following in stops
                or following >= len(code)
                or ".sync" in code[following].op
            ):
                return

    # --- operands ---

    def _value(self, lane: Lane, text: str) -> Any:
        if text.startswith("!"):
            return not self._value(lane, text[1:])
        if text in lane.stack[-1].values:
            return lane.stack[-1].values[text]
        if text.lstrip("-").isdigit() or text.startswith(("0x", "-0x")):
            return int(text, 0)
        if text in ("%globaltimer", "%clock", "%clock64"):
            clock = 1_000 + 2 * self.steps
            timer = 1_700_000_000_000_000_000 + self.steps // 32 * 32
            return timer if text == "%globaltimer" else clock & (WHOLE if text == "%clock" else -1)
        return lane.special[text]

    def _address(self, lane: Lane, text: str) -> int:
        name, _, offset = text.strip("[]").partition("+")
        return self._value(lane, name) + (int(offset, 0) if offset else 0)

    def _at(self, address: int, size: int) -> slice:
        at = address - self.base
        assert at >= 0 and at + size <= len(self.memory) and at % size == 0, (
            f"an access at byte {at} of {len(self.memory)}"
        )
        return slice(at, at + size)

    def load(self, address: int, size: int) -> int:
        return int.from_bytes(self.memory[self._at(address, size)], "little")

    def store(self, address: int, size: int, value: int) -> None:
        self.memory[self._at(address, size)] = (value % (1 << 8 * size)).to_bytes(size, "little")

    # --- instructions ---

    def _execute(self, now: Instruction, lanes: list[Lane], warp: list[Lane]) -> None:
        kind = now.op.split(".")
        if ".sync" in now.op:
            self._together(now, kind, lanes)
        elif kind[0] == "activemask":
            mask = sum(1 << x.number for x in lanes)
            for lane in lanes:
                lane.stack[-1].values[now.operands[0]] = mask
        elif kind[0] in ("ret", "exit"):
            for lane in lanes:
                self._return(lane, warp, kind[0] == "exit")
        else:
            what = getattr(self, f"_{kind[0]}", None)
            for lane in lanes:
                if what:
                    what(now, kind, lane)
                else:
                    self._plain(now, kind, lane)

    def _return(self, lane: Lane, warp: list[Lane], ends: bool) -> None:
        frame = lane.stack.pop()
        if ends or not lane.stack:
            warp.remove(lane)
            lane.stack.append(frame)
        elif frame.into:
            name, into = frame.into
            if name:
                into[name] = frame.memory["func_retval0"]

    def _bra(self, now: Instruction, kind: list[str], lane: Lane) -> None:
        frame = lane.stack[-1]
        frame.at = frame.function.labels[now.operands[0]]

    def _call(self, now: Instruction, kind: list[str], lane: Lane) -> None:
        into, name, *names = now.operands
        callee, caller = self.functions[name], lane.stack[-1]
        given = {p: caller.memory[n] for p, n in zip(callee.parameters, names, strict=True)}
        lane.stack.append(Frame(callee, memory=given, into=(into, caller.memory)))

    def _ld(self, now: Instruction, kind: list[str], lane: Lane) -> None:
        size = int(kind[-1][1:]) // 8
        into, source = now.operands
        if "param" in kind:
            lane.stack[-1].values[into] = lane.stack[-1].memory[source.strip("[]").split("+")[0]]
            return
        address, names = (
            self._address(lane, source),
            [n.strip() for n in into.strip("{}").split(",")],
        )
        self._at(address, size * len(names))  # aligned as a whole
        for k, name in enumerate(names):
            lane.stack[-1].values[name] = self.load(address + size * k, size)

    def _st(self, now: Instruction, kind: list[str], lane: Lane) -> None:
        size = int(kind[-1][1:]) // 8
        if "param" in kind:
            value = self._value(lane, now.operands[1]) % (1 << 8 * size)
            lane.stack[-1].memory[now.operands[0].strip("[]").split("+")[0]] = value
            return
        address = self._address(lane, now.operands[0])
        values = [v.strip() for v in now.operands[1].strip("{}").split(",")]
        self._at(address, size * len(values))  # aligned as a whole
        for k, name in enumerate(values):
            self.store(address + size * k, size, self._value(lane, name))

    def _atom(self, now: Instruction, kind: list[str], lane: Lane) -> None:
        size = int(kind[-1][1:]) // 8
        address = self._address(lane, now.operands[1])
        before = self.load(address, size)
        given = [self._value(lane, o) for o in now.operands[2:]]
        if "cas" in kind:
            after = given[1] if before == given[0] else before
        else:
            after = _ARITHMETIC[kind[2]](before, given[0])
        self.store(address, size, after)
        lane.stack[-1].values[now.operands[0]] = before

    def _red(self, now: Instruction, kind: list[str], lane: Lane) -> None:
        self._atom(Instruction(now.op, ("_", *now.operands), None), kind, lane)

    def _setp(self, now: Instruction, kind: list[str], lane: Lane) -> None:
        bits, signed = int(kind[-1][1:]), kind[-1][0] == "s"
        a, b = (_typed(self._value(lane, o), bits, signed) for o in now.operands[1:3])
        found = _COMPARE[kind[1]](a, b)
        if len(now.operands) == 4:
            third = bool(self._value(lane, now.operands[3]))
            found = found and third if kind[2] == "and" else found or third
        lane.stack[-1].values[now.operands[0]] = found

    def _mov(self, now: Instruction, kind: list[str], lane: Lane) -> None:
        values, (into, source) = lane.stack[-1].values, now.operands
        if into.startswith("{"):
            whole = self._value(lane, source)
            for k, name in enumerate(into.strip("{}").split(",")):
                values[name.strip()] = whole >> 32 * k & WHOLE
        elif source.startswith("{"):
            names = source.strip("{}").split(",")
            values[into] = sum(self._value(lane, n.strip()) << 32 * k for k, n in enumerate(names))
        else:
            value = self._value(lane, source)
            values[into] = value if kind[1] == "pred" else value % (1 << int(kind[1][1:]))

    def _plain(self, now: Instruction, kind: list[str], lane: Lane) -> None:
        values, name = lane.stack[-1].values, kind[0]
        given = [self._value(lane, o) for o in now.operands[1:]]
        if kind[-1] == "pred":
            values[now.operands[0]] = bool(
                not given[0] if name == "not" else _ARITHMETIC[name](given[0], given[1])
            )
            return
        bits, signed = int(kind[-1][1:]), kind[-1][0] == "s"
        if name == "cvt":
            values[now.operands[0]] = _typed(given[0], bits, signed) % (1 << int(kind[1][1:]))
            return
        if name == "lop3":
            a, b, c, table = (v % (1 << bits) for v in given)
            chosen = [
                (x, y, z)
                for x in (0, 1)
                for y in (0, 1)
                for z in (0, 1)
                if table >> (4 * x + 2 * y + z) & 1
            ]
            found = 0
            for x, y, z in chosen:
                found |= (a if x else ~a) & (b if y else ~b) & (c if z else ~c)
            values[now.operands[0]] = found % (1 << bits)
            return
        if name in ("selp", "bfi"):
            found = given[0] if name == "selp" and given[2] else given[1]
            if name == "bfi":
                field_, into, at, length = given
                ones = (1 << length) - 1
                found = into & ~(ones << at) | (field_ & ones) << at
            values[now.operands[0]] = found % (1 << bits)
            return
        typed = [_typed(v, bits, signed) for v in given[:2]]
        if name in ("shl", "shr"):
            typed[1] = min(given[1] & WHOLE, bits)
        a = typed[0]
        single = {
            "not": lambda: ~a,
            "neg": lambda: -a,
            "popc": a.bit_count,
            "clz": lambda: bits - a.bit_length(),
        }
        if name in single:
            found = single[name]()
        elif name == "brev":
            found = int(f"{a:0{bits}b}"[::-1], 2)
        elif (
            name == "bfind"
        ):  # .shiftamt: how far to shift left until the highest bit is at the top
            found = bits - a.bit_length() if a else WHOLE
        elif name == "mad":
            found = a * typed[1] + given[2]
        else:
            found = _ARITHMETIC[name](a, typed[1])
        values[now.operands[0]] = found % (1 << (2 * bits if "wide" in kind else bits))

    def _together(self, now: Instruction, kind: list[str], lanes: list[Lane]) -> None:
        """Each lane with those of its mask, which are all here."""
        by_number = {x.number: x for x in lanes}
        results = []
        for lane in lanes:
            mask = self._value(lane, now.operands[-1]) & WHOLE
            assert mask >> lane.number & 1, "a lane synchronises without being in the mask"
            others = [by_number[n] for n in range(32) if mask >> n & 1 and n in by_number]
            if kind[0] == "bar":
                continue
            source = now.operands[1]
            each = [self._value(x, source) for x in others]
            if kind[0] == "vote":
                found: Any = any(each) if kind[2] == "any" else all(each)
                if kind[2] == "ballot":
                    found = sum(1 << x.number for x, v in zip(others, each, strict=True) if v)
            elif kind[0] == "redux":
                found = {"add": sum, "min": min, "max": max, "or": lambda v: max(v)}[kind[2]](
                    each
                ) & WHOLE
            elif kind[0] == "match":
                mine = self._value(lane, source)
                found = sum(1 << x.number for x, v in zip(others, each, strict=True) if v == mine)
            else:
                found = self._value(by_number[self._value(lane, now.operands[2]) & 31], source)
            results.append((lane, found))
        for lane, found in results:
            lane.stack[-1].values[now.operands[0].split("|")[0]] = found


def _typed(value: int, bits: int, signed: bool) -> int:
    value = int(value) % (1 << bits)
    return value - (1 << bits) if signed and value >> (bits - 1) else value
