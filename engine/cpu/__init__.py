"""What makes a model fast on a CPU: weights laid out for it, and a pass without module calls."""
