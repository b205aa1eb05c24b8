"""Long names made short, so that different ones stay different."""

from __future__ import annotations

import re
from collections.abc import Mapping

_ROUNDS = 3


def told_apart(short: Mapping[str, str], longest: int) -> dict[str, str]:
    """Name -> short form; if several names would share a form, it begins with the word in which they differ.

    `void gemm_f32_tile64x256_stage3(...)`, `void gemm_f32_tile128x128_stage3(...)`: `…tile64x256_stage3`, `…tile128x128_stage3`.
    """
    out = dict(short)
    for _ in range(_ROUNDS):
        groups: dict[str, list[str]] = {}
        for name, text in out.items():
            groups.setdefault(text, []).append(name)
        for alike in groups.values():
            if len(alike) > 1:
                begin = _difference(alike)
                out |= {name: _from(name, begin, longest) for name in alike}
    return out


def _from(name: str, begin: int, longest: int) -> str:
    text = ("…" if begin else "") + name[begin:]
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _difference(names: list[str]) -> int:
    """Where different names begin to differ: at the beginning of that word."""
    first, last = min(names), max(names)  # all names share what these do
    same = next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return re.search(r"[A-Za-z0-9]*$", first[:same]).start()
