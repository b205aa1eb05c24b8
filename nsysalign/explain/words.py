"""Wording of the titles of findings."""

from __future__ import annotations

import re

from nsysalign.text import of, percent, plural, span, times

#: A call site without its folders; names of layers (`/model/attention/MatMul`) also contain
#: slashes, and are kept.
_SITE = r"[^\s()/\\]+:\d+"
__all__ = ["kernel", "of", "percent", "plural", "span", "subject", "times", "times_over"]

_FOLDERS = re.compile(rf"\A.*[/\\](?={_SITE})", re.DOTALL)


def times_over(count: int) -> str:
    """ "once", "40 times"."""
    return "once" if count == 1 else f"{count:,} times"


def subject(label: str) -> str:
    """A label without the folders of its call sites: the finding's `site` is shown next to the
    title."""
    return re.sub(r"[^\s()]+", lambda word: _FOLDERS.sub("", word[0]), label) or label


def kernel(detail: str, width: int = 48) -> str:
    """A kernel's short name: without return type, namespaces, parameters and template arguments."""
    name = detail.split("on the way: ", 1)[-1]
    functors = [
        w for w in re.findall(r"\w+", name) if "Functor" in w[1:] or re.match(r"Functor_\w", w)
    ]
    plain = _without_brackets(name).strip()
    if "::" in plain or plain.startswith("void "):
        *space, head = plain.split()[-1].split("::")
        # some libraries call every kernel "kernel": then its namespace names it
        plain = f"{space[-1]}::{head}" if space and head.lower().startswith("kernel") else head
    text = f"{plain} ({functors[0]})" if functors and functors[0] not in plain else plain
    return text if len(text) <= width else text[: width - 1] + "…"


def _without_brackets(name: str) -> str:
    """The name without everything inside <...> and (...), nested or not; the whole name if brackets
    do not match."""
    depth, out = 0, []
    for character in name:
        if character in "<(":
            depth += 1
        elif character in ">)":
            depth -= 1
        elif depth == 0:
            out.append(character)
    return "".join(out) if depth == 0 and "".join(out).strip() else name
