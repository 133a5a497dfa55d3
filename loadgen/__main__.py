"""`python -m loadgen` is `loadgate`."""

from loadgen.cli import main

main()
