"""Expert routing balance: sources of counts, the definitions of balance and variance, and several nodes."""
