"""Hangs: torch's flight records of each rank's last collectives, read against the layout."""
