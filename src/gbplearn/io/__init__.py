"""Reads and writes files: checkpoints of learners, and pose graphs."""
