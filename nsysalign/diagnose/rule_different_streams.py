"""Start and end lie on different streams: their distance is not the duration of the work on either."""

from __future__ import annotations

from collections.abc import Iterator

from nsysalign.diagnose import words
from nsysalign.diagnose.facts import Facts
from nsysalign.diagnose.finding import Finding, Rule, evidence

NAME = "different-streams"


def find(facts: Facts) -> Iterator[Finding]:
    v = facts.analysis.intervals
    start, end = v["start_stream"].to_numpy(), v["end_stream"].to_numpy()
    mask = facts.is_event & (start >= 0) & (end >= 0) & (start != end)
    if not mask.any():
        return
    waited = facts.detail_rows("queued", names=("dependency", "dependency-inferred", "default-stream-order"))
    ordered = facts.detail_ns(facts.detail_rows("api", "StreamWaitEvent")) > 0
    ordered |= facts.detail_ns(waited[waited["stream"].to_numpy() == start[waited["at"].to_numpy()]]) > 0
    for case in facts.cases(mask):
        at = case.row
        joined = bool(ordered[at])
        how = "a wait joins them inside" if joined else "no wait between them was seen"
        yield Finding(
            NAME,
            "info" if joined else "warning",
            case.label,
            f"{words.subject(case.label)} starts on stream {start[at]} and ends on stream {end[at]} ({how}): "
            f"{words.span(facts.elapsed[at])} is a distance between two queues, not the duration of one.",
            evidence(
                elapsed_ns=facts.elapsed[at],
                start_stream=start[at],
                end_stream=end[at],
                kernel_on_the_end_stream_ns=facts.kernel_only[at],
                seen_in=case.frequency,
            ),
            "Record both on the stream that does the work (start.record(stream); ...; end.record(stream)), or make the end's stream "
            "wait for the start:   stream.wait_event(start)",
            case.site,
            case.positions,
            float(facts.elapsed[at]),
        )


RULE = Rule(NAME, find)
