"""Simulated devices: what the real readers of GPUs and NPUs find on a machine that has none."""
