"""How long a step takes, term by term; how predictions are calibrated; and which layout is the fastest."""
