"""KV cache: usage, lookups and hits of the engine beside the sidecar, in one form for every engine."""
