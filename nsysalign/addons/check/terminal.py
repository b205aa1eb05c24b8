"""A verdict as text, for terminals and for logs of CI."""

from __future__ import annotations

import shutil
import textwrap

from nsysalign.addons.check.judge import Verdict
from nsysalign.addons.check.scene import FOUND, Doubt
from nsysalign.text import plural, quantity, safe_text, span, words


def render(verdict: Verdict) -> str:
    """The headline, then every doubt with its evidence, what it is worth, and the number that would
    be right."""
    lines = [*_wrapped("", headline(verdict)), ""]
    for doubt in verdict.doubts:
        lines += [*_doubt(doubt), ""]
    lines += [line for text in verdict.unchecked for line in _wrapped("not checked: ", text)]
    return "\n".join(lines).rstrip() + "\n"


def headline(verdict: Verdict) -> str:
    """What was found, in one line."""
    looked = f"{plural(verdict.intervals, 'timed interval')} of {plural(verdict.labels, 'label')}"
    found = len({doubt.label for doubt in verdict.found})
    if not found:
        return f"Nothing found in {looked}."
    return f"The numbers of {plural(found, 'label')} are not what they seem ({looked})."


def _doubt(doubt: Doubt) -> list[str]:
    mark = "!" if doubt.level == FOUND else "i"
    out = _wrapped(f"{mark} ", doubt.title)
    if doubt.measured_ns is not None:
        text = f"{span(doubt.measured_ns)} ({safe_text(doubt.quoted)})"
        if doubt.right_ns is not None:
            text += f"; right: {doubt.bound}{span(doubt.right_ns)}"
            text += f"; worth: {doubt.bound}{span(abs(doubt.worth_ns or 0))}"
        out += _wrapped("  Measured: ", text)
    if len(doubt.intervals) < doubt.of:
        out += _wrapped("  Seen in:  ", f"{len(doubt.intervals)} of {doubt.of} intervals")
    if doubt.evidence:
        told = ", ".join(f"{words(k)} {quantity(k, v)}" for k, v in doubt.evidence.items())
        out += _wrapped("  Evidence: ", told)
    if doubt.site:
        out += _wrapped("  At:       ", doubt.site)
    return out


def _wrapped(head: str, text: str) -> list[str]:
    width, more = shutil.get_terminal_size().columns, " " * min(len(head), 12)
    return textwrap.wrap(safe_text(text), width, initial_indent=head, subsequent_indent=more)
