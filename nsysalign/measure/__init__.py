"""Measures a call correctly: fresh processes, five modes, reliable confidence intervals, the best batch.

parent    plan -> session -> runner (one process per batch and replicate) -> statistics -> result
worker    target -> warmup -> modes (backend: cuda) -> stop          torch and the standard library only
"""
