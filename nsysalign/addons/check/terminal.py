"""A verdict as text, for terminals and for logs of CI."""

from __future__ import annotations

import shutil
import textwrap

from nsysalign.addons.check.judge import Verdict
from nsysalign.addons.check.scene import FOUND
from nsysalign.text import plural, quantity, safe_text, span, words


def render(verdict: Verdict) -> str:
    """The headline, then every doubt with its evidence, what it is worth, and the number that would
    be right."""
    width, lines = shutil.get_terminal_size().columns, []

    def add(head: str, text: str) -> None:
        more = " " * min(len(head), 12)
        lines.extend(
            textwrap.wrap(safe_text(text), width, initial_indent=head, subsequent_indent=more)
        )

    add("", headline(verdict))
    for doubt in verdict.doubts:
        lines.append("")
        add("! " if doubt.level == FOUND else "i ", doubt.title)
        if doubt.measured_ns is not None:
            text = f"{span(doubt.measured_ns)} ({safe_text(doubt.quoted)})"
            if doubt.right_ns is not None:
                text += f"; right: {doubt.bound}{span(doubt.right_ns)}"
                text += f"; worth: {doubt.bound}{span(abs(doubt.worth_ns or 0))}"
            add("  Measured: ", text)
        if len(doubt.intervals) < doubt.of:
            add("  Seen in:  ", f"{len(doubt.intervals)} of {doubt.of} intervals")
        if doubt.evidence:
            evidence = (f"{words(k)} {quantity(k, v)}" for k, v in doubt.evidence.items())
            add("  Evidence: ", ", ".join(evidence))
        if doubt.site:
            add("  At:       ", doubt.site)
    lines.append("")
    for text in verdict.unchecked:
        add("not checked: ", text)
    return "\n".join(lines).rstrip() + "\n"


def headline(verdict: Verdict) -> str:
    """What was found, in one line."""
    looked = f"{plural(verdict.intervals, 'timed interval')} of {plural(verdict.labels, 'label')}"
    found = len({doubt.label for doubt in verdict.found})
    if not found:
        return f"Nothing found in {looked}."
    return f"The numbers of {plural(found, 'label')} are not what they seem ({looked})."
