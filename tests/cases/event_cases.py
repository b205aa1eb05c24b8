"""One drawing per row of the cause table (docs/design.md, section 4), kind event.  Everything in
microseconds.

In the pictures H is the host thread (r: a record call, s: the launch or copy call, y: a
synchronisation), G the stream (| an event's time, # a kernel or copy).  The window goes from | to
|.
"""

from __future__ import annotations

from simulator.world import D2H, HostFunction

from .drawing import collector, events, kernel, ordinary_launches

EVENT_CASES, case = collector()


@case("kernel 25, launch_latency 2, event 3", kernel_only=25)
def rule_1_kernel(w):
    """
    H  r0-2  s3-7 r8-10
    G             |10   #12-37   |40
    """
    kernel(w, (3, 7), (12, 37))
    events(w, 10, (8, 10), 40)


@case("kernel 30, launch_latency 2, event 3", kernel_only=30)
def rule_1_overlapping_kernels_are_a_union(w):
    """
    G  |10   #12-32        |45
                #22-42            programmatic dependent launch: 20 + 20 us, but 30 of the window
    """
    kernel(w, (3, 5), (12, 32))
    kernel(w, (5, 7), (22, 42))
    events(w, 10, (8, 10), 45)


@case("graph 25, launch_latency 2, event 3", kernel_only=0)
def rule_2_graph(w):
    w.op("graph", 12, 37, w.call("graph_launch", 3, 7))
    events(w, 10, (8, 10), 40)


@case(
    "kernel 23, launch_latency 2, graph 15, unknown 20, event 3",
    kernel_only=23,
    with_graphs=38,
    gpu_busy=38,
)
def rule_8_graph_traced_as_nodes(w):
    """
    G  |10   #12-22  .  #27-37  .   #67-70 |73      47-67 a node waits for what is not in the trace
    """
    call = w.call("graph_launch", 3, 7)
    w.kernel(12, 22, call, graph_node=1)
    w.kernel(27, 37, call, graph_node=2)
    w.kernel(67, 70, call, graph_node=3)
    events(w, 10, (8, 10), 73)


@case("memcpy 25, launch_latency 2, event 3", details={"pinned": 25})
def rule_3_pinned_copy(w):
    w.copy(12, 37, w.call("memcpy", 3, 7), pageable=False)
    events(w, 10, (8, 10), 40)


@case("kernel 5, memcpy 15, launch_latency 2, event 3")
def rule_1_before_3_a_kernel_wins_over_a_copy(w):
    """
    G  |10  copy #12-32
            kernel  #15-20   |35        nodes of one graph
    """
    call = w.call("graph_launch", 3, 7)
    w.copy(12, 32, call, pageable=False)
    w.kernel(15, 20, call, graph_node=2)
    events(w, 10, (8, 10), 35)


@case("memset 25, launch_latency 2, event 3")
def rule_4_memset(w):
    w.op("memset", 12, 37, w.call("memset", 3, 7), bytes=4096)
    events(w, 10, (8, 10), 40)


@case("host 11, memcpy 35, event 5", details={"staging": 20})
def rule_5_staging_before_and_after(w):
    """
    H  r0-2         s15------------------50  r52-54
    G      |6            #30------45               |57
           host 9   stage 15 copy 15 stage 5 host 2 event 5
    """
    w.copy(30, 45, w.call("memcpy", 15, 50), pageable=True)
    events(w, 6, (52, 54), 57)


@case("host 11, memcpy 15, api_launch 20, event 5")
def rule_5_not_for_pinned_memory(w):
    """As above, but pinned: 15-30 is rule 9; 45-50 is rule 11, the rest of a call whose copy
    ended."""
    w.copy(30, 45, w.call("memcpy", 15, 50), pageable=False)
    events(w, 6, (52, 54), 57)


@case(
    "kernel 15, queued 49, host 4, api_launch 4, launch_latency 2, event 4",
    details={"dependency": 49},
)
def rule_6_waits_for_another_stream(w):
    """
    H    r0-2   [13: s-8--5 r-4--2]  w3-5  s10-14  r16-18
    G7       |6                                     #65-80  |84
    G13         #0------------60 |63
         6-10 host (the wait's call is before the window), 10-14 api_launch, 14-63 queued, 63-65
         latency
    """
    kernel(w, (-8, -5), (0, 60), 13)
    r = w.record(63, -4, -2, 13)
    w.wait(r, 3, 5, 7)
    kernel(w, (10, 14), (65, 80))
    events(w, 6, (16, 18), 84)


@case("kernel 15, queued 0, host 4, api_launch 4, launch_latency 51, event 4")
def rule_6_not_for_a_wait_that_is_over(w):
    """The awaited record was at -10: N is just slow."""
    r = w.record(-10, -20, -18, 13)
    w.wait(r, 3, 5, 7)
    kernel(w, (10, 14), (65, 80))
    events(w, 6, (16, 18), 84)


@case(
    "kernel 15, api_launch 4, launch_latency 2, host 4, queued 45, event 4",
    details={"dependency": 45},
)
def rule_6_the_end_record_itself_waits(w):
    """
    H  r0-2 s10-14  w16-18 r18-20
    G7    |6    #16-31                |80
    G13   #0-------------------75 |76
          31-76 queued behind the wait, 76-80 event
    """
    kernel(w, (-8, -5), (0, 75), 13)
    r = w.record(76, -4, -2, 13)
    kernel(w, (10, 14), (16, 31))
    w.wait(r, 16, 18, 7)
    events(w, 6, (18, 20), 80)


@case("host 8, api_launch 4, event 10, api 2, queued 50", details={"dependency": 50})
def rule_6_the_end_record_waits_for_a_librarys_record(w):
    """
    H  r0-2 [13: s10-14 r15-17]  r18-20  w21-23 r24-26
    G7    |6                      |22                             |80
    G13                 #16----------------------------------75 |76
          the record of 15-17 is in no log; the wait is not for that of 18-20, which its own stream
          holds; 26-76 queued behind the wait, 76-80 event
    """
    kernel(w, (10, 14), (16, 75), 13)
    r = w.record(76, 15, 17, 13, logged=False)
    w.record(22, 18, 20, 7)
    w.wait(r, 21, 23, 7, logged=False)
    events(w, 6, (24, 26), 80)


@case(
    "kernel 15, queued 46, host 4, api_launch 4, launch_latency 5, event 4",
    details={"default-stream": 46},
)
def rule_6_legacy_default_stream(w):
    """
    H    r0-2 s3-5  s10-14  r16-18
    G7    |6                      #65-80  |84      the legacy default stream
    G14       #8-------------60                    a blocking stream: 14-60 queued, 60-65 latency
    """
    kernel(w, (3, 5), (8, 60), 14)
    kernel(w, (10, 14), (65, 80))
    events(w, 6, (16, 18), 84)


@case(
    "kernel 15, queued 46, host 4, api_launch 4, launch_latency 5, event 4",
    details={"default-stream": 46},
)
def rule_6_blocking_stream_waits_for_the_legacy_one(w):
    """The same the other way round: both events are on stream 14."""
    kernel(w, (3, 5), (8, 60), 7)
    kernel(w, (10, 14), (65, 80), 14)
    events(w, 6, (16, 18), 84, stream=14, end_stream=14)


@case("host 5, queued 50, memcpy 25, event 8", details={"default-stream": 50, "staging": 10})
def rule_6_before_5_a_pageable_copy_waits_for_a_blocking_stream(w):
    """
    H    r0-2 s3-5  s10------------------------85  r86-88
    G7    |6                      #65-80              |94
    G14       #8-------------60       10-60 queued, 60-65 and 80-85 staging
    """
    kernel(w, (3, 5), (8, 60), 14)
    w.copy(65, 80, w.call("memcpy", 10, 85), pageable=True)
    events(w, 6, (86, 88), 94)


@case("kernel 15, unknown 51, host 4, api_launch 4, event 4")
def rule_6_host_function(w):
    """
    H  r0-2 f3-5 s10-14 r16-18
    G7    |6  (f runs, not in the trace)   #65-80 |84
    """
    call = w.call("host_function", 3, 5)
    w.host_functions.append(HostFunction(7, call, 20, 60))
    kernel(w, (10, 14), (65, 80))
    events(w, 6, (16, 18), 84)


@case(
    "kernel 15, queued 44, launch_latency 7, host 4, api_launch 4, event 4",
    details={"contention": 44},
)
def rule_7_contention_of_kernels(w):
    """
    H  r0-2   s10-14  r16-18
    G7    |6               #65-80 |84        14 + L = 16
    G13   #0------------60                   a non-blocking stream: no order, but the device is busy
          14-16 latency, 16-60 queued, 60-65 latency
    """
    ordinary_launches(w)
    kernel(w, (-8, -5), (0, 60), 13)
    kernel(w, (10, 14), (65, 80))
    events(w, 6, (16, 18), 84)


@case(
    "kernel 25, queued 32, launch_latency 9, host 4, api_launch 4, event 4",
    details={"contention": 32},
)
def rule_7_counts_from_the_previous_operation(w):
    """
    H    r0-2   s10-14 s14-18  r19-21
    G7    |6              #20-30         #65-80 |84      P ends at 30, so contention can begin at 30 + L = 32
    G13   #0----------------------------60
          14-16 latency, 16-20 queued, 30-32 latency, 32-60 queued, 60-65 latency
    """
    ordinary_launches(w)
    kernel(w, (-8, -5), (0, 60), 13)
    kernel(w, (10, 14), (20, 30))
    kernel(w, (14, 18), (65, 80))
    events(w, 6, (19, 21), 84)


@case(
    "memcpy 15, queued 44, launch_latency 7, host 4, api_launch 4, event 4",
    details={"contention": 44},
)
def rule_7_contention_of_copies(w):
    ordinary_launches(w)
    w.copy(0, 60, w.call("memcpy", -8, -5), 13, pageable=False)
    w.copy(65, 80, w.call("memcpy", 10, 14), pageable=False)
    events(w, 6, (16, 18), 84)


@case("memcpy 15, launch_latency 51, host 4, api_launch 4, event 4")
def rule_7_not_for_copies_in_the_other_direction(w):
    ordinary_launches(w)
    w.copy(0, 60, w.call("memcpy", -8, -5), 13, pageable=False, kind=D2H)
    w.copy(65, 80, w.call("memcpy", 10, 14), pageable=False)
    events(w, 6, (16, 18), 84)


@case("memset 15, launch_latency 51, host 4, api_launch 4, event 4")
def rule_7_not_for_a_memset(w):
    ordinary_launches(w)
    kernel(w, (-8, -5), (0, 60), 13)
    w.op("memset", 65, 80, w.call("memset", 10, 14))
    events(w, 6, (16, 18), 84)
