"""Files: checkpoints, pose graphs."""
