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
    """A kernel's short name: without return type, namespaces, parameters and template arguments;
    whole if its brackets do not match."""
    name = detail.split("on the way: ", 1)[-1]
    depth, plain = 0, ""
    for character in name:
        depth -= character in ">)"
        plain += character if depth == 0 and character not in "<>()" else ""
        depth += character in "<("
    plain = plain.strip() if depth == 0 and plain.strip() else name
    if "::" in plain or plain.startswith("void "):
        *space, head = plain.split()[-1].split("::")
        # some libraries call every kernel "kernel": then its namespace names it
        plain = f"{space[-1]}::{head}" if space and head.lower().startswith("kernel") else head
    words = re.findall(r"\w+", name)
    functor = next((w for w in words if "Functor" in w[1:] or w.startswith("Functor_")), plain)
    text = plain if functor in plain else f"{plain} ({functor})"
    return text if len(text) <= width else text[: width - 1] + "…"
