"""Rules about waiting behind others, wrong streams and pairs, host timers, and the event pair's own
cost."""

from __future__ import annotations

from .drawing import found, interval, piece, repeat, severities

KERNEL = (("launch_latency", 1.6), ("kernel", 200), ("event", 2.3))


def test_dependency_and_contention_are_told_apart():
    for what, text in (
        ("dependency", "ordered behind stream 13"),
        ("contention", "while stream 13 kept"),
    ):
        waits = repeat(10, "x", piece("queued", 300, what, stream=13), *KERNEL)
        finding = found(waits)["x", "queued"]
        assert finding.severity == "warning" and text in finding.title
        assert list(severities(waits)) == ["queued"] and finding.loss_ns == 10 * 300_000


def test_a_short_wait_is_an_info_and_a_tiny_one_nothing():
    assert severities(repeat(10, "x", piece("queued", 30, "dependency", stream=13), *KERNEL)) == {
        "queued": "info"
    }
    assert severities(repeat(10, "x", piece("queued", 3, "dependency", stream=13), *KERNEL)) == {}


def test_wrong_stream_is_an_error():
    empty = (("host", 33), ("api_launch", 5), ("event", 6))
    finding = found(repeat(10, "x", *empty, other={23: 2_668}))["x", "wrong-stream"]
    assert finding.severity == "error"
    assert finding.evidence["working_stream"] == 23 and finding.evidence["timed_stream"] == 7
    assert "wrong-stream" not in severities(repeat(10, "x", *KERNEL, other={23: 2_668}))
    assert "wrong-stream" not in severities(repeat(10, "x", *empty))


def test_another_threads_work_is_no_wrong_stream():
    empty = repeat(10, "x", ("host", 5), ("event", 5), other={23: 2_668})
    busy = repeat(10, "other thread", *KERNEL, stream=23, tid=2)
    assert ("x", "wrong-stream") not in found(empty, busy)
    assert ("x", "wrong-stream") in found(empty)  # one thread: whose work should it be?
    inferred = repeat(
        10, "x", ("api_launch", 5), ("event", 5), other={23: 2_668}, method="inferred"
    )
    assert ("x", "wrong-stream") not in found(inferred)


def test_different_streams_with_and_without_a_wait_between_them():
    apart = repeat(10, "x", *KERNEL, stream=27, start_stream=7)
    assert severities(apart) == {"different-streams": "warning"}
    joined = repeat(
        10, "x", piece("api", 1, "cudaStreamWaitEvent"), *KERNEL, stream=27, start_stream=7
    )
    assert severities(joined) == {"different-streams": "info"}


def test_pairs_without_a_place():
    lost = [
        ("early", "elapsed_time failed: CUDA error: device not ready"),
        ("swapped", "negative elapsed_time: the end was recorded before the start"),
        ("graph", "captured into a CUDA graph"),
        ("unseen", "the probe did not see one of its records"),
    ]
    rules = {label: rule for label, rule in found(repeat(10, "x", *KERNEL), unaligned=lost)}
    assert rules == dict.fromkeys(("early", "swapped", "graph"), "no-result")


def test_host_timer_patterns():
    never = repeat(
        10, "never", ("host", 4), ("api_launch", 4), kind="host", issued=2.3, outside=2.3
    )
    both = repeat(
        10,
        "both",
        ("host", 8),
        ("api_launch", 4),
        ("kernel", 0.3),
        ("sync", 3),
        kind="host",
        issued=2.3,
    )
    second = repeat(
        10, "second", ("api_launch", 4), piece("queued", 500, "earlier-work", stream=7), ("kernel", 300), ("sync", 3), kind="host", issued=300,
    )  # fmt: skip
    long = repeat(
        10,
        "long",
        ("host", 8),
        ("api_launch", 4),
        ("kernel", 900),
        ("sync", 3),
        kind="host",
        issued=900,
    )
    rules = found(never, both, second, long)
    assert rules["never", "enqueue-only"].severity == "error"
    assert rules["both", "host-timer"].severity == "warning"
    assert rules["second", "queued"].severity == "warning"
    assert not [rule for label, rule in rules if label == "long"]
    assert ("never", "host-timer") not in rules and ("both", "enqueue-only") not in rules


def test_host_timers_say_where_they_synchronise():
    before, after, idle = "synchronised-before", "synchronised-after", "idle-before"
    enqueue = (("host", 4), ("api_launch", 4))
    whole = (("host", 8), ("api_launch", 4), ("kernel", 2), ("sync", 3))
    rules = found(
        repeat(3, "never", *enqueue, kind="host", issued=2, outside=2),
        repeat(3, "calm", *enqueue, kind="host", issued=2, outside=2, flags=(idle,)),
        repeat(3, "first", *enqueue, kind="host", issued=2, outside=2, flags=(before, idle)),
        repeat(3, "second", *whole, kind="host", flags=(after,)),
        repeat(3, "calm second", *whole, kind="host", flags=(after, idle)),
        # a loop's first repetition begins with nothing behind it
        [interval("both", *whole, kind="host", flags=(after,)), *repeat(2, "both", *whole, kind="host", flags=(before, after))],
    )  # fmt: skip
    assert "never synchronises, and earlier work" in rules["never", "enqueue-only"].title
    assert "nothing waits for the work" in rules["calm", "enqueue-only"].title
    assert "measures the API calls alone; all 2 us" in rules["first", "enqueue-only"].title
    assert "before the second reading as well" in rules["first", "enqueue-only"].advice
    assert "or for earlier work, which was still running" in rules["second", "host-timer"].title
    assert "here it had ended" in rules["calm second", "host-timer"].title
    assert "before the first reading as well" in rules["second", "host-timer"].advice
    assert rules["both", "host-timer"].evidence["synchronises"] == "before and after"


def test_a_host_timer_that_never_synchronises_is_always_named():
    """300 runs of 6.3 ms, 0.7 ms of kernels that overlap with the launches: it measures the
    host."""
    loop = (("host", 3300), ("api_launch", 3000))
    rules = found(
        repeat(3, "overlapped", *loop, kind="host", issued=700, outside=100),
        repeat(3, "ended", *loop, kind="host", issued=700, outside=0),
        repeat(
            3, "before", *loop, kind="host", issued=700, outside=50, flags=("synchronised-before",)
        ),
        repeat(
            3, "closed", *loop, ("sync", 5), kind="host", issued=700, flags=("synchronised-after",)
        ),
        repeat(3, "copied", *loop, ("memcpy", 5), kind="host", issued=700),
    )
    overlapped = rules["overlapped", "enqueue-only"]
    assert overlapped.severity == "warning"
    assert (
        "never synchronises" in overlapped.title
        and "100 of 700 us of kernels ran after" in overlapped.title
    )
    assert "kernels ran for 0.60 of 6.30 ms meanwhile" in overlapped.title
    assert rules["ended", "enqueue-only"].severity == "info"
    assert "but nothing ensures that" in rules["ended", "enqueue-only"].title
    assert "only before the first reading" in rules["before", "enqueue-only"].title
    assert ("closed", "enqueue-only") not in rules and ("copied", "enqueue-only") not in rules


def test_full_queue():
    blocked = repeat(
        10, "x", ("api_launch", 400), piece("queued", 600, "full-queue", stream=7), kind="host"
    )
    assert severities(blocked) == {"queued": "warning"}


def test_waiting_for_the_host_is_no_empty_pair():
    prefetch = repeat(6, "prefetch", ("host", 900), ("api", 40), ("event", 4))
    empty = repeat(6, "empty", ("host", 6), ("event", 3))
    rules = found(prefetch, empty)
    waits = rules["prefetch", "event-floor"]
    assert waits.title == (
        "prefetch contains no GPU work: for 940 of 944 us the host did something else before it recorded the end event."
    )
    assert "perf_counter" in waits.advice and "another thread" in waits.faster
    assert "9 us is what an event pair itself costs" in rules["empty", "event-floor"].title
    assert not rules["empty", "event-floor"].faster
