"""``python -m shoal``."""

from .cli import main

main()
