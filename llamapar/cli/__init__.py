"""The `llamapar` command."""
