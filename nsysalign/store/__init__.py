"""Stored results: analysis.json, analysis.db, CSV, Parquet; all files appear whole or not at all."""
