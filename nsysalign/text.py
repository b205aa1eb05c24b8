"""The one module that turns numbers (and foreign text) into text.

Everything else keeps int64 nanoseconds. The page's script has its own version of `duration`
(templates/format.js), because hover texts are made in the browser.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

#: The number of a repetition at the end of a name: "step#7".
REPETITION = r"#(\d+)$"
#: Shown for exactly zero in tables, so that the eye finds the numbers.
ZERO = "."

#: Limit in nanoseconds, size of the unit below it, its name; seconds beyond.
_TIMES = ((999.5, 1, "ns"), (999.5e3, 1e3, "us"), (999.5e6, 1e6, "ms"))
#: Endings of evidence keys that name a unit.
_UNITS = {"_mhz": "MHz", "_w": "W", "_celsius": "°C"}

_FOLDERS = re.compile(r"\A.*[/\\](?=[^\s()/\\]+:\d+)", re.DOTALL)
# C0, DEL and C1 controls drive a terminal (ESC sequences); bidi controls reorder what is read; two
# texts that differ by a space of no width look the same; a lone surrogate cannot be encoded at all.
_CONTROLS = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]"
)
#: What compilers add to the name of a function for a region of it: nvc (OpenMP, OpenACC), clang.
_REGION = re.compile(r"(_F\d+L\d+_\d+|_\d+_gpu(__red)?|_l\d+)$")
#: A kernel with a name that many share, and its first template argument.
_SHARED_NAME = re.compile(r"(?:^|\W)[Kk]ernel\d*<\W*(?:\w+ )?(\w{9,})")
_LONG_WORD = re.compile(r"\w{9,}")
_SURROGATES = re.compile(r"[\ud800-\udfff]")
# Whole escape sequences go, so that "\x1b[31mred" becomes "red" and not "[31mred".
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?|\x1b.?"
)


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key: node2 before node10."""
    return tuple(
        (0, int(part), "") if part.isdecimal() and len(part) < 20 else (1, 0, part)
        for part in re.split(r"(\d+)", text)
        if part
    )


def safe_text(text: Any) -> str:
    """One line of plain text: no terminal control, no bidi control, nothing that cannot be
    encoded."""
    text = str(text)
    if text.isascii() and text.isprintable():
        return text
    line = re.sub(r"[\t\r\n\v\f\x85\u2028\u2029]+", " ", text)
    return _SURROGATES.sub("\ufffd", _CONTROLS.sub("", _ESCAPES.sub("", line)))


def fixed(ns: float | None, decimals: int = 2) -> str:
    """A table cell: 1234720 -> "1,234.72" (microseconds); exactly zero is a dot, unknown is a question
    mark."""
    if ns is None or math.isnan(ns):
        return "?"
    return f"{ns / 1_000:,.{decimals}f}" if ns else ZERO


def duration(ns: float | None) -> str:
    """A time in prose, three significant digits with its unit: "32 ns", "24.8 us", "217 us", "1.79
    ms"."""
    if ns is None or math.isnan(ns):
        return "unknown"
    size, unit = _unit(ns)
    return f"{_digits(ns / size, whole=size == 1)} {unit}"


def span(ns: float) -> str:
    """A time in a title, in which whole numbers stay whole: "24.8 us", "24 us"."""
    size, unit = _unit(ns)
    return f"{_digits(ns / size)} {unit}"


def of(part_ns: float, whole_ns: float) -> str:
    """A part of a whole in the whole's unit: "164 of 228 us"; a part too small for it keeps its
    own."""
    part = part_ns / _unit(whole_ns)[0]
    return f"{span(part_ns) if part < 0.5 else _digits(part)} of {span(whole_ns)}"


def same_unit(ns: float, other_ns: float) -> bool:
    """Whether both times are told in the same unit."""
    return _unit(ns) == _unit(other_ns)


def _unit(ns: float) -> tuple[float, str]:
    return next(((size, unit) for limit, size, unit in _TIMES if abs(ns) < limit), (1e9, "s"))


def _digits(value: float, whole: bool | None = None) -> str:
    """Three significant digits; of a whole number none behind the point, if nothing else is said."""
    size, whole = abs(value), value == int(value) if whole is None else whole
    places = 0 if whole or size >= 99.95 else 1 if size >= 9.995 else 2
    return f"{value:.{places}f}"


def microseconds(ns: float) -> str:
    """A time in a sentence with several times, all in one unit: "1,234.5 us"."""
    return f"{ns / 1e3:,.1f} us"


def bytes_text(count: float) -> str:
    """Bytes in decimal units, as bandwidths are: "512 B", "2.10 MB"."""
    sizes = ((1e3, 1, "B"), (1e6, 1e3, "kB"), (1e9, 1e6, "MB"), (math.inf, 1e9, "GB"))
    size, unit = next((size, unit) for limit, size, unit in sizes if count < limit)
    return f"{_digits(count / size, whole=size == 1)} {unit}"


def bandwidth(count: float, ns: float) -> str:
    """Bytes per nanosecond are GB/s."""
    return f"{_digits(count / ns, whole=False)} GB/s" if ns > 0 else ""


def percent(share: float) -> str:
    """0.742 -> "74 %"; something small is never "0 %"."""
    if 0 < share < 0.005:
        return "<1 %"
    return f"{100 * share:.0f} %"


def change(share: float, decimals: int = 1) -> str:
    """0.123 -> "+12.3 %", always with a sign."""
    return f"{100 * share:+.{decimals}f} %"


def change_between(low: float, high: float, decimals: int = 1) -> str:
    """ "-80.1 to -70.3 %"; '' if nothing bounds it."""
    return f"{100 * low:+.{decimals}f} to {change(high, decimals)}" if math.isfinite(low) else ""


def gibibytes(count: float) -> str:
    """Memory as GPUs' is counted: "79.2 GiB"."""
    return f"{count / 2**30:,.1f} GiB"


def times(factor: float) -> str:
    """2.345 -> "2.3 times", 345.6 -> "346 times"."""
    return f"{factor:.1f} times" if factor < 10 else f"{factor:,.0f} times"


def times_over(count: int) -> str:
    """ "once", "40 times"."""
    return "once" if count == 1 else f"{count:,} times"


def plural(count: int, noun: str) -> str:
    """1, "label" -> "1 label"; 3 -> "3 labels"."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def ordinal(number: int) -> str:
    """3 -> "3rd"; 11 -> "11th"; 24 -> "24th"."""
    is_teen = number // 10 % 10 == 1
    ending = "th" if is_teen else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{ending}"


def middle(text: str, width: int) -> str:
    """Shorten in the middle: both ends of a name distinguish it."""
    if len(text) <= width:
        return text
    if width <= 1:
        return "…"[:width]
    tail = (width - 1) // 2
    return text[: width - 1 - tail] + "…" + (text[-tail:] if tail else "")


def quantity(key: str, value: Any) -> str:
    """A number of unknown meaning, formatted by the unit its key ends in (`_ns`, `bytes`,
    `share`)."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "unknown"}[value]
    if isinstance(value, dict):
        return ", ".join(f"{safe_text(words(k))} {quantity(k, v)}" for k, v in value.items())
    if isinstance(value, (list, tuple)):
        shown = ", ".join(quantity(key, v) for v in value[:6])
        return shown + (f", … ({len(value)})" if len(value) > 6 else "")
    if not isinstance(value, (int, float)):
        return safe_text(value)
    if key.endswith("_ns"):
        return duration(value)
    if key.endswith("bytes"):
        return bytes_text(value)
    if key.endswith(("share", "fraction")):
        return percent(value)
    for ending, unit in _UNITS.items():
        if key.endswith(ending):
            return f"{_digits(value, whole=unit != 'W')} {unit}"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def words(key: str) -> str:
    """A column or evidence key as words: "kernel_only_ns" -> "kernel only"."""
    return re.sub(r"_(ns|us|ms|mhz|w|celsius)$", "", str(key)).replace("_", " ")


def short_name(kernel: str) -> str:
    """ "void at::native::reduce_kernel<512, 1>(...)" -> "reduce_kernel": what a line has room for
    (format.js, `shortName`)."""
    return _outside(kernel).removeprefix("void ").rpartition("::")[2].strip() or kernel


def _outside(name: str) -> str:
    """What stands outside of all brackets, '' if these do not match."""
    depth, plain = 0, ""
    for character in name:
        depth -= character in ">)"
        plain += character if depth == 0 and character not in "<>()" else ""
        depth += character in "<("
    return plain.strip() if depth == 0 else ""


def demangled(name: str) -> str:
    """A mangled name as its source has it, with what a compiler adds for a region of it:
    "nvkernel__Z9transposePdS__F1L86_2" -> "transpose_F1L86_2"; others as they are."""
    place = name.find("_Z") + 2
    if place < 2:
        return name
    nested = name[place : place + 1] == "N"
    place += nested
    parts = []
    while length := re.match(r"[1-9]\d{0,3}", name[place:]):
        begin = place + length.end()
        place = begin + int(length[0])
        parts.append(name[begin:place])
        if not nested:
            break
    region = _REGION.search(name)
    if not parts or place > len(name):
        return name
    return "::".join(parts) + (region[0] if region else "")


#: torch's function that a kernel of one element each is made for: `float16_copy_kernel_cuda`.
_DOES = re.compile(r"\w_kernel_(cuda|impl)$")


#: Numba writes a kernel's version and signature behind its name: `axpy[abi:v1][abi:cw51cXTLSUwv1s…]`.
_ABI_TAG = re.compile(r"\[abi:\w*\]")


def kernel_name(detail: str, width: int = 48) -> str:
    """A kernel as findings name it: without return type, namespaces, parameters and template
    arguments, but with its functor; whole if its brackets do not match."""
    name = _ABI_TAG.sub("", detail.split("on the way: ", 1)[-1])
    plain = _outside(name) or name
    if "::" in plain or plain.startswith("void "):
        *space, head = plain.split()[-1].split("::")
        # some libraries call every kernel "kernel": then its namespace names it
        plain = f"{space[-1]}::{head}" if space and head.lower().startswith("kernel") else head
    parts = re.findall(r"\w+", name)
    functor = next(
        (w for w in parts if "Functor" in w[1:] or w.startswith("Functor_") or _DOES.search(w)),
        plain,
    )
    if shared := _SHARED_NAME.search(name):  # cutlass::Kernel2<cutlass_80_…_align4>(T1::Params)
        return middle(f"{plain} {shared[1]}", width)
    text = plain if functor in plain else f"{plain} ({functor})"
    if len(text) > width >= len(functor) and _DOES.search(functor):
        return functor  # what it does says more than how
    return text if len(text) <= width else text[: width - 1] + "…"


def subject(label: str) -> str:
    """A label without the folders of its call sites (names of layers, `/model/attention/MatMul`,
    are kept): the finding's `site` is shown next to the title."""
    return re.sub(r"[^\s()]+", lambda word: _FOLDERS.sub("", word[0]), label) or label


def told_apart(short: Mapping[str, str], longest: int) -> dict[str, str]:
    """Name -> short form; names that would share a form begin with the word in which they differ:
    `…tile64x256_stage3`, `…tile128x128_stage3`; where only numbers differ, these stand behind the name:
    `implicit_c…lve_sgemm …1024, 5, 5`."""
    out = dict(short)
    for _ in range(3):  # what differs may be cut off again
        groups: dict[str, list[str]] = {}
        for name, text in out.items():
            groups.setdefault(text, []).append(name)
        for alike in (names for names in groups.values() if len(names) > 1):
            endings = _endings(alike)
            words = {name: _LONG_WORD.search(endings[name]) for name in alike}
            are_words = len({word and word[0] for word in words.values()}) == len(alike)
            for name, ending in endings.items():
                word = words[name]
                if are_words and word:
                    text = "…" + ending[word.start() :]
                elif ending == name:
                    text = name
                else:
                    text = f"{middle(short[name], longest // 2)} …{ending}"
                out[name] = text if len(text) <= longest else text[: longest - 1] + "…"
    return out


def _endings(alike: Sequence[str]) -> dict[str, str]:
    """Name -> what follows the part that all of these names share, from the word on in which they differ."""
    first, last = min(alike), max(alike)  # what these share, all share
    pairs = enumerate(zip(first, last, strict=False))
    shared = next((n for n, (a, b) in pairs if a != b), len(first))
    shared = re.search(r"[A-Za-z0-9]*$", first[:shared]).start()
    endings = {}
    for name in alike:
        # neither brackets that stay open, nor what all kernels of a library are called with
        ending = re.sub(r">*\(\w*(::\w+)?\)$", "", name[shared:])
        endings[name] = ending if "<" not in ending else name[shared:]
    return endings


def within(middle_ns: float, lower_ns: float, upper_ns: float) -> str:
    """ "191 ±25" (microseconds): no more digits than the bar allows."""
    reach = max(upper_ns - middle_ns, middle_ns - lower_ns)
    places = 0 if reach >= 10_000 else 1 if reach >= 1_000 else 2
    return f"{middle_ns / 1_000:,.{places}f} ±{reach / 1_000:,.{places}f}"
