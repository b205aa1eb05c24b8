"""Measures a call correctly: fresh processes, five modes, reliable intervals, the best batch.

parent    plan -> session -> runner (one process per batch, again and again) -> statistics -> result
worker    target -> warmup -> modes (backend: cuda)       torch, numpy and the standard library
"""
