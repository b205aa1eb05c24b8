"""`python -m nsysalign`."""

from nsysalign.cli import main

main()
