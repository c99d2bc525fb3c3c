"""What the networks are compared with: the same architectures, learnt in the usual way."""
