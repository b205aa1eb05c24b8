"""An analysis as tables, files and pages."""
