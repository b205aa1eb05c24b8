"""Intervals that the program itself timed with host clocks: the readings, which pairs it subtracts, and their windows."""
