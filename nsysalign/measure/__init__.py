"""Measures a call right: fresh processes, five modes, intervals that hold, the best batch.

parent    plan -> session -> runner (one process per batch and replicate) -> statistics -> result
worker    target -> warmup -> modes (backend: cuda or simulated) -> stop          torch and the standard library only
"""
