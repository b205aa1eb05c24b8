"""Measures a call: fresh processes, five ways of timing it, intervals, the best batch.

parent    plan -> session (one process per batch, again and again) -> statistics -> result -> screen, page
worker    target -> modes -> device       torch, numpy and the standard library
"""
