"""What keeps loopy inference from diverging."""
