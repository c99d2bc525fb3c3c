"""Inference: messages, visits, schedules, the loop, the guard, and what comes out."""
