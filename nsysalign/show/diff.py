"""A comparison of two runs in the terminal, and as plain data for its JSON document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from nsysalign.causes import DISPLAY
from nsysalign.compare.label_changes import REASONS, sides_of
from nsysalign.show.table import Column, draw, text
from nsysalign.student import CONFIDENCE
from nsysalign.text import change as relative
from nsysalign.text import change_between, duration, fixed, percent, plural, safe_text

if TYPE_CHECKING:
    from nsysalign.compare.label_changes import Change, Comparison, LabelChange, WrongTiming

#: So many wrong timings have a sentence each.
MOST_WRONG = 6
#: Smaller changes of causes do not matter where the total stayed the same.
EVEN_SHARE = 0.02
#: A row with a time from this one on needs one decimal less.
_LONG_NS = 10_000_000
#: In the order in which a reader wants them; of a wrong timing no other is said.
VERDICT_ORDER = ("wrong", "slower", "faster", "unclear", "same", "different")


def ordered(comparison: Comparison) -> list[LabelChange]:
    """Return the labels in the order in which they are shown: by their verdicts, wrong timings first, then the slower ones,
    of equal verdicts the largest change first; labels timed by libraries last."""

    def place(label: LabelChange) -> tuple[bool, int, float]:
        """Return the key by which labels are sorted."""
        return label.library, VERDICT_ORDER.index(verdict(label)), -abs(label.total.change_ns)

    return sorted(comparison.labels, key=place)


def document(comparison: Comparison) -> dict[str, Any]:
    """`nsysalign diff --json`: nanoseconds, labels in the order of the first analysis."""
    written = {"format": "nsysalign-diff", "version": 3} | vars(comparison)
    written |= {"confidence": CONFIDENCE, "labels": [*map(_label, comparison.labels)]}
    del written["missing"]
    return written


def _label(label: LabelChange) -> dict[str, Any]:
    return vars(label) | {
        "reason": REASONS.get(label.reason, ""),
        "total": of_change(label.total),
        "kernel_only": of_change(label.kernel_only),
        "parts": {cause: of_change(change) for cause, change in label.parts.items()},
    }


def of_change(change: Change) -> dict[str, float]:
    """A change as plain data, in ns."""
    return {name: round(ns, 1) for name, ns in vars(change).items()} | {"clear": change.clear}


# --- words ---


def verdict(label: LabelChange) -> str:
    """Return what is said of a label's change: of a wrong timing "wrong", whatever its number did."""
    # the sign of runs that were not recorded alike stays: no label of theirs is judged
    return "wrong" if label.wrong and label.verdict != "different" else label.verdict


def words(label: LabelChange) -> str:
    """Return the verdict of a label and its reason: "slower", "unclear: varies", "wrong in A and B"."""
    word = verdict(label)
    if word == "wrong":
        return f"wrong in {label.wrong}"
    return f"{word}: {label.reason}" if label.reason else word


def summary(comparison: Comparison) -> str:
    """Return one sentence: how many labels have a wrong timing, got slower, got faster, stayed the same, are unclear; or why
    nothing can be said."""
    if not comparison.labels:
        return "The two have no label in common, so nothing can be compared."
    # a label has a row for each of its kinds of timings
    label_count = len({row.label for row in comparison.labels})
    compared = plural(label_count, "label")
    if len(comparison.labels) > label_count:
        compared += f" ({plural(len(comparison.labels), 'kind')} of timings)"
    if comparison.count("different"):
        return (
            f"The two were recorded differently, which alone changes times: {compared} in both, none "
            "judged. Record both alike, or judge all the same with --anyway."
        )
    if comparison.same_recording:
        return f"The two are the same recording: nothing can have changed in {compared}."
    verdicts = [verdict(label) for label in comparison.labels]
    texts = [f"{verdicts.count(word)} {word}" for word in VERDICT_ORDER if word in verdicts]
    if "wrong" in verdicts:
        texts[0] += " (what is wrong has no change to judge)"
    return f"Of {compared} in both: {', '.join(texts)}."


def wrong(comparison: Comparison) -> tuple[list[str], str]:
    """Return (a sentence for each wrong timing, at most MOST_WRONG, with the side or sides on which it is wrong; how many
    more there are, '' for none): a change of it is no change of what is meant.  What is in both runs stands first.
    """
    timings = sorted(
        comparison.wrong,
        key=lambda timing: not any(sides_of(timing, label) for label in comparison.labels),
    )
    more = len(timings) - MOST_WRONG
    shown = [_wrong_timing(timing) for timing in timings[:MOST_WRONG]]
    return shown, plural(more, "more wrong timing") if more > 0 else ""


def wrong_of(comparison: Comparison, label: LabelChange) -> list[str]:
    """Return those sentences of `wrong` that are about one label, on either side."""
    return [_wrong_timing(timing) for timing in comparison.wrong if sides_of(timing, label)]


def _wrong_timing(timing: WrongTiming) -> str:
    return f"{timing.sides}: {safe_text(timing.sentence)}"


def method(comparison: Comparison) -> str:
    """Return what the numbers and words of a comparison mean; of REASONS those that occur."""
    occurring = {label.reason for label in comparison.labels}
    if any(verdict(label) == "wrong" for label in comparison.labels):
        occurring.add("wrong timing")
    reasons = [reason for reason in REASONS if reason in occurring]
    return (
        "".join(f"{reason.capitalize()}: {REASONS[reason]}. " for reason in reasons)
        + "Times are means of the middle half of the intervals of one kind of work at one speed, without first calls; "
        "the causes' changes add up to the total's. Bounds hold the true change with "
        f"{percent(CONFIDENCE)} confidence per label (bootstrap over intervals); "
        f"changes below {100 * comparison.threshold:.3g} % do not matter."
    )


def name(label: LabelChange) -> str:
    """A label, and which of its kinds of work."""
    return f"{label.label} ({label.work})" if label.work else label.label


def changed(label: LabelChange) -> str:
    """The change relative to the time before: "-77.1 %"; "new" where there was none."""
    total = label.total
    return relative(total.change_ns / total.before_ns) if total.before_ns else "new"


def between(label: LabelChange) -> str:
    """The bounds relative to the time before: "-80.1 to -70.3 %"; '' where too few intervals make
    none, both sides are identical, or a wrong timing has no true change that they could hold."""
    total = label.total
    identical = total.low_ns == total.high_ns == 0
    no_bounds = label.reason == "too few" or identical or verdict(label) == "wrong"
    if not total.before_ns or no_bounds:
        return ""
    return change_between(total.low_ns / total.before_ns, total.high_ns / total.before_ns)


def where(label: LabelChange, most: int = 3) -> str:
    """Return the causes that clearly changed, the largest first: "host -164 us, launch +3.1 us"; "" for none, and for a
    label whose change is unclear or whose timing is wrong.

    most: how many are named; the others are counted

    Where the total stayed the same, only causes are named that changed by a share of it that matters: what one lost
    another gained, as between ranks that wait.
    """
    if verdict(label) in ("unclear", "wrong"):
        return ""
    least_ns = EVEN_SHARE * label.total.before_ns if label.verdict == "same" else 1
    ns_of_cause = {
        cause: part.change_ns
        for cause, part in label.parts.items()
        if part.clear and abs(part.change_ns) >= least_ns
    }
    causes = sorted(ns_of_cause, key=lambda cause: -abs(ns_of_cause[cause]))
    texts = []
    for cause in causes[:most]:
        sign = "+" if ns_of_cause[cause] > 0 else ""  # a decrease has its own
        texts.append(f"{DISPLAY[cause]} {sign}{duration(ns_of_cause[cause])}")
    if len(causes) > most:
        texts.append(f"… {len(causes) - most} more")
    return ", ".join(texts)


# --- the terminal ---

_LOOKS = {
    "wrong": ("✖", "bold red"),
    "slower": ("▲", "bold red"),
    "faster": ("▼", "bold green"),
    "unclear": ("?", "yellow"),
    "same": ("=", "dim"),
    "different": ("≠", ""),
}
_MOST_NAMES = 12


def render(comparison: Comparison, console: Console, page: str = "") -> None:
    """Print the comparison of two runs: wrong timings, what makes them incomparable, how many labels changed, a row per label with
    what changed in it below, then labels that only one run has, remarks, and what the numbers mean.

    page: the path of the page, "" if there is none

    label  times    A us   B us   change  verdict
    h2d_t1   6/6  227.71  52.10  -77.1 %  ▼ faster
      -80.1 to -70.3 %; host -154 us, launch -25.3 us
    """
    sides = {"A": comparison.before, "B": comparison.after}
    for side, name in sides.items():
        console.print(Text(f"{side} {safe_text(name)}", "bold"), soft_wrap=True)
    sentences, more = wrong(comparison)
    for sentence in filter(None, (*sentences, more)):
        console.print(Text(f"✖ {sentence}", "bold red"))
    for confounder in comparison.confounders:
        console.print(Text(f"! {safe_text(confounder)}", "bold yellow"))
    console.print(Text(summary(comparison)))
    if comparison.labels:
        console.print()
        _print_table(comparison, console)
    for side, names in (("A", comparison.only_before), ("B", comparison.only_after)):
        if names:
            shown = ", ".join(safe_text(name) for name in names[:_MOST_NAMES])
            more = f", … {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
            line = f"only in {side}: {plural(len(names), 'label')}: {shown}{more}"
            console.print(Text(line, "yellow"))
    for remark in comparison.remarks:
        console.print(Text(f"note: {safe_text(remark)}", "dim"))
    if comparison.labels:
        console.print(Text(method(comparison), "dim"))
    if page:
        console.print(Text(f"→ {safe_text(page)}"), soft_wrap=True)


def _print_table(comparison: Comparison, console: Console) -> None:
    """Print a row for each label: how often it was timed, its times before and after, the change and a verdict.
    Below it stand the bounds of the change and the causes that changed."""
    labels = ordered(comparison)
    before, after, below = [], [], []
    for label in labels:
        before_ns, after_ns = label.total.before_ns, label.total.after_ns
        # both times are printed in microseconds, with as many decimals: long ones with one less
        decimals = 2 if max(before_ns, after_ns) < _LONG_NS else 1
        before.append(fixed(before_ns, decimals=decimals))
        after.append(fixed(after_ns, decimals=decimals))
        below.append("; ".join(filter(None, (between(label), where(label)))))
    verdicts = [f"{_LOOKS[verdict(label)][0]} {words(label)}" for label in labels]
    styles = [_LOOKS[verdict(label)][1] for label in labels]
    counts = [f"{label.count_before}/{label.count_after}" for label in labels]
    columns = [
        text("label", [safe_text(name(label)) for label in labels]),
        Column("times", counts, leaves=1),
        Column("A us", before),
        Column("B us", after),
        Column("change", [changed(label) for label in labels]),
        Column("verdict", verdicts, left=True, styles=styles),
    ]
    dim = ["dim" if label.library else "" for label in labels]
    draw(columns, console, styles=dim, below=below)
