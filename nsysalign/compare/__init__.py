"""Two analyses, label by label: what changed, and how sure that is.  Pure functions; the report
stage draws them."""
