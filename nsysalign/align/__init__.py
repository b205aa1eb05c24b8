"""Where the two events of every interval lie on the trace's clock (design section 3)."""
