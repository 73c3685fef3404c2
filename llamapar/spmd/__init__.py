"""Building blocks of sharded programs: collectives, kernels, a rank's setting, and torch's versions."""
