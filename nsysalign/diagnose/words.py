"""Numbers in the titles of findings: titles are the one text that this stage writes itself."""

from __future__ import annotations

import re

#: A call site without its folders; names of layers (`/model/attention/MatMul`) have slashes, too, and are kept.
_SITE = r"[^\s()/\\]+:\d+"
_UNITS = ((999.5, 1, "ns"), (999.5e3, 1e3, "us"), (999.5e6, 1e6, "ms"), (float("inf"), 1e9, "s"))


_FOLDERS = re.compile(rf"\A.*[/\\](?={_SITE})", re.DOTALL)


def span(ns: float) -> str:
    """A time with three digits and its unit: "24.8 us"."""
    size, unit = _unit(ns)
    return f"{_digits(ns / size)} {unit}"


def of(part_ns: float, whole_ns: float) -> str:
    """A part of a whole in the whole's unit: "164 of 228 us"; a part too small for it keeps its own."""
    size, unit = _unit(whole_ns)
    if part_ns / size < 0.5:
        return f"{span(part_ns)} of {span(whole_ns)}"
    return f"{_digits(part_ns / size)} of {_digits(whole_ns / size)} {unit}"


def percent(share: float) -> str:
    """0.742 -> "74 %"."""
    return f"{100 * share:.0f} %" if share >= 0.005 or share == 0 else "<1 %"


def times(factor: float) -> str:
    """2.345 -> "2.3 times", 345.6 -> "346 times"."""
    return f"{factor:.1f} times" if factor < 10 else f"{factor:,.0f} times"


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def subject(label: str) -> str:
    """A label without the folders of its call sites: the finding's `site` stands beside the title."""
    return re.sub(r"[^\s()]+", lambda word: _FOLDERS.sub("", word[0]), label) or label


def kernel(detail: str, width: int = 48) -> str:
    """A kernel's name as people say it: without return type, namespaces, parameters and template arguments."""
    name = detail.split("on the way: ", 1)[-1]
    functors = [w for w in re.findall(r"\w+", name) if "Functor" in w[1:] or re.match(r"Functor_\w", w)]
    plain = _without_brackets(name).strip()
    if "::" in plain or plain.startswith("void "):
        *space, head = plain.split()[-1].split("::")
        # some libraries call every kernel "kernel": then its namespace names it
        plain = f"{space[-1]}::{head}" if space and head.lower().startswith("kernel") else head
    text = f"{plain} ({functors[0]})" if functors and functors[0] not in plain else plain
    return text if len(text) <= width else text[: width - 1] + "…"


def _without_brackets(name: str) -> str:
    """Everything inside <...> and (...) gone, whatever nests in it; all of it when brackets do not match."""
    depth, out = 0, []
    for character in name:
        if character in "<(":
            depth += 1
        elif character in ">)":
            depth -= 1
        elif depth == 0:
            out.append(character)
    return "".join(out) if depth == 0 and "".join(out).strip() else name


def _unit(ns: float) -> tuple[float, str]:
    return next((size, unit) for limit, size, unit in _UNITS if abs(ns) < limit)


def _digits(value: float) -> str:
    size = abs(value)
    if size >= 99.95 or value == int(value):
        return f"{value:.0f}"
    return f"{value:.1f}" if size >= 9.995 else f"{value:.2f}"
