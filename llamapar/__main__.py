"""`python -m llamapar`, the same as the `llamapar` command."""

from .cli import main

raise SystemExit(main())
