"""Where what was measured lies on the trace's clock (docs/design.md, section 3): `align.align` does all of it,
in four stages."""
