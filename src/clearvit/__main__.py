"""`python -m clearvit` is the command `clearvit`."""

from clearvit.cli import main

main()
