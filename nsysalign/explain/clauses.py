"""A sentence about a run as clauses that know what is left of them where a screen has little room.

    (Clause("for 4.68 of 13.3 ms at least half of the GPU had nothing to do: add"),
     Clause(" (of 4 such kernels the one that runs longest: 1.54 ms)", {Cut.REMARK: ""}),
     Clause(" was launched with 1 block of 1 thread"),
     Clause(", and the GPU has 82 multiprocessors", {Cut.WORDS: ""}))

`ever_shorter` makes all texts of it where its words are known, and the findings keep them; `in_three_lines` chooses one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, auto
from textwrap import wrap

#: Lines of what is said of a run, and their columns.
_LINES, _COLUMNS = 3, 80
#: A sentence says "mostly" of what takes so much: of little more than half, something else is nearly as much.
MOSTLY = 2 / 3
#: A screen breaks no line between a number and its unit.
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:%|[num]?s)(?!\w))")
#: Where a sentence begins behind another one.
_BETWEEN_SENTENCES = re.compile(r"(?<=\.) (?=[A-Z\d])")


class Cut(IntEnum):
    """What is left out, or said in fewer words, where three lines have no room: what says least goes first, and stays
    away at all later cuts.  A sentence about set-up and the one behind it are cut by the same list."""

    NOTHING = auto()
    REMARK = auto()  # what is true of all such runs, in brackets
    TOTAL = auto()  # a number that follows from others, or was said
    GPU_TIME = auto()  # of set-up: for how long the GPU works
    SET_UP = auto()  # of set-up: fewer words
    WORDS = auto()  # fewer words
    PLACE = auto()  # when pauses began
    CALLS_TIME = auto()  # of set-up: how much of it passes in calls; "Run" before its name
    RANGE = auto()  # the range that it lies in, and how long what ends many gaps takes
    THIRD_PAUSE = auto()
    SECOND_PAUSE = auto()
    FOURTH_CLAUSE = auto()
    THIRD_CLAUSE = auto()
    SECOND_CLAUSE = auto()  # what is said beside the first cause
    CALL = auto()  # of set-up: which call, how much passes on each side; back where the cause goes
    DETAIL = auto()  # of the first cause: which calls, how often
    CAUSE = auto()  # why the GPU was idle: then its fix says nothing


@dataclass(frozen=True)
class Clause:
    """Some words of a sentence, with what joins them to those before: "; for 3 ms it waited".

    words:   in full
    instead: from which cut on -> what stands there instead, '' for nothing
    """

    words: str
    instead: Mapping[Cut, str] = field(default_factory=dict)

    def after(self, cut: Cut) -> str:
        """Return what is left of it."""
        made = [earlier for earlier in self.instead if earlier <= cut]
        return self.instead[max(made)] if made else self.words


def until(cut: Cut, *clauses: Clause) -> tuple[Clause, ...]:
    """Return clauses that are all left out from a cut on."""
    return tuple(Clause(clause.words, {**clause.instead, cut: ""}) for clause in clauses)


def ever_shorter(*clauses: Clause) -> tuple[str, ...]:
    """Return the sentence that is left after each `Cut`: the first one is the full sentence."""
    texts = ["".join(clause.after(cut) for clause in clauses) for cut in Cut]
    texts = [text if text.endswith((".", ", …")) else f"{text}." for text in texts]
    return tuple(f"{text[:1].upper()}{text[1:]}" for text in texts)


def in_three_lines(of_run: Sequence[str], of_set_up: Sequence[str] = ()) -> tuple[str, bool]:
    """Return (as much of a sentence about a run as three lines of 80 columns have room for, behind as much of the one
    about its set-up, if there is one; whether it still says why the GPU was idle).

    of_run, of_set_up: as `ever_shorter` returns them
    """
    pairs = zip(Cut, of_set_up or [""] * len(of_run), of_run, strict=False)
    for cut, head, tail in pairs:
        if fits(head, tail):
            return f"{head} {tail}".strip(), cut < Cut.CAUSE
    return (of_set_up or of_run)[-1], False


def fits(head: str, tail: str) -> bool:
    """Return whether three lines have room for both: the first sentence has lines of its own, as on a screen."""
    text = _BEFORE_UNIT.sub("\N{NO-BREAK SPACE}", f"{head} {tail}".strip())
    sentence, stop, behind = text.partition(". ")
    return len(wrap(sentence + stop, _COLUMNS)) + len(wrap(behind, _COLUMNS)) <= _LINES


def sentences_of_three_lines(text: str) -> str:
    """Return as many sentences of a text as three lines have room for, the first two in any case."""
    first, *later = _BETWEEN_SENTENCES.split(text)
    kept = " ".join([first, *later[:1]])
    for sentence in later[1:]:
        longer = _BEFORE_UNIT.sub("\N{NO-BREAK SPACE}", f"{kept} {sentence}")
        if len(wrap(longer, _COLUMNS)) > _LINES:
            break
        kept = f"{kept} {sentence}"
    return kept
