"""Flight records: what torch notes of each rank's last collectives, read against the layout."""
