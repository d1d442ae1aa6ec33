"""`python -m htaf`: the command, where its script is not on the path."""

from htaf.cli import main

main()
