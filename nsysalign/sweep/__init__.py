"""Arithmetic on sorted intervals that alignment and attribution share; knows nothing of causes or records."""
