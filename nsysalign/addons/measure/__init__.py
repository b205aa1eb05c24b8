"""Measures a call: fresh processes, five ways of timing it, intervals, the best batch.

parent    command -> session (one process per batch, again and again) -> statistics -> result -> screen
worker    target -> clocks       torch, numpy and the standard library
"""
