"""What makes a transformers model fast on CPUs: packed weights, and kernels compiled where they run."""
