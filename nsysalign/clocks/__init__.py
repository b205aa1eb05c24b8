"""How clocks relate: the host's and the GPU's to the trace's clock, and the events' own clock."""
