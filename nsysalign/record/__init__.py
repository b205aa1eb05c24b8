"""Everything that happens before there is a trace: in the user's process (probe) and around it
(nsys)."""
