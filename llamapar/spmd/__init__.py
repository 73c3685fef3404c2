"""What sharded programs are written with: collectives, kernels, a rank's setting; torch's versions."""
