"""One stored form, analysis.db, and the JSON document that is exported from it; every file appears
whole or not at all."""
