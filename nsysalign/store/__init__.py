"""What is kept: analysis.json, analysis.db, CSV, Parquet, Perfetto's format; all files appear whole or not at all."""
