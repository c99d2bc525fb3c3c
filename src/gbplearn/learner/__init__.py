"""Learning from a stream: the posterior of one batch is the prior of the next."""

from .learner import Learner

__all__ = ["Learner"]
