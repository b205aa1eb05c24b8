"""Long traces, stretch by stretch: each slice is read, aligned and attributed by itself, in bounded memory.

The stages are those of a trace in memory (`nsysalign.engine`); what a slice cannot know (all processes and streams, how long
records take) is passed in (`align.context`), and the results are combined as `PartialResult`s.
"""
