"""`python -m htaf.cli`."""

from htaf.cli import main

main()
