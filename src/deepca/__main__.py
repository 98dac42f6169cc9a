"""Run the command line with ``python -m deepca``."""

from deepca.cli import main

main()
