"""The guard: what keeps loopy belief propagation from diverging."""
