"""Arithmetic on sorted intervals, shared by alignment and attribution; it knows nothing about causes or records."""
