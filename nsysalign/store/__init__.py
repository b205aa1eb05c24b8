"""One stored form, analysis.db, and what is exported from it: JSON, CSV, Parquet; every file
appears whole or not at all."""
