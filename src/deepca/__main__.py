"""``python -m deepca``: the command line."""

from deepca.cli import main

main()
