"""Long traces, stretch by stretch: each slice is read, aligned and attributed by itself, in bounded memory.

The stages are those of a trace in memory (`nsysalign.engine`); what a slice cannot know (who appears in the trace, how
long records take) is given to it (`align.context`), and what it found is put together as a `PartialResult`.
"""
