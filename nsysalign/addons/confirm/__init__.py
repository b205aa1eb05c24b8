"""`nsysalign confirm`: test a finding by a second run with one change."""
