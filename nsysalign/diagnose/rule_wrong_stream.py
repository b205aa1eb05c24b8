"""The events lie on a stream that did no work, while work launched between them ran on another stream."""

from __future__ import annotations

from collections.abc import Iterator

from nsysalign.diagnose import thresholds, words
from nsysalign.diagnose.facts import Facts, rows_of
from nsysalign.diagnose.finding import Finding, Rule, evidence

NAME = "wrong-stream"


def find(facts: Facts) -> Iterator[Finding]:
    # other threads launch on their own streams, too: the work must be the timing thread's own, as far as one can tell
    threads = facts.analysis.intervals["tid"].nunique()
    own = (facts.part("api_launch") > 0) | (threads == 1)
    compared = (facts.analysis.intervals["method"] != "inferred").to_numpy(dtype=bool)
    mask = (
        facts.is_event & compared & own & (facts.work == 0) & (facts.other_ns >= thresholds.OTHER_STREAM_NS)
    )
    others = facts.analysis.other_streams
    others = others.assign(at=facts.position(others["interval"].to_numpy())).sort_values("at", kind="stable")
    for case in facts.cases(mask):
        at = case.row
        where = rows_of(others, at)
        stream = int(facts.analysis.intervals["end_stream"].iloc[at])
        worked = int(where["stream"].iloc[0])
        yield Finding(
            NAME,
            "error",
            case.label,
            f"{words.subject(case.label)} times a stream that did no work: its events are on stream {stream}, the work launched "
            f"between them ran {words.span(facts.other_ns[at])} on stream {worked}.",
            evidence(
                elapsed_ns=facts.elapsed[at],
                kernel_on_the_timed_stream_ns=0,
                work_on_other_streams_ns=facts.other_ns[at],
                timed_stream=stream,
                working_stream=worked,
                seen_in=case.frequency,
            ),
            "Record both events on the stream that does the work:   start.record(stream); ...; end.record(stream)",
            case.site,
            case.positions,
            float(facts.elapsed[at]),
        )


RULE = Rule(NAME, find)
