"""Clocks and how they go: the host's and the GPU's on the trace's clock, the events' own."""
