"""How long a step takes, term by term and which layout is the fastest."""
