"""Features apart from the core, one room each; the core works without this folder."""
