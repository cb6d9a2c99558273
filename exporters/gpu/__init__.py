"""NVIDIA GPUs, read through NVML."""
