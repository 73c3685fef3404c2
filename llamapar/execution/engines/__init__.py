"""Where ranks run: in one process, as processes, or under torchrun."""
