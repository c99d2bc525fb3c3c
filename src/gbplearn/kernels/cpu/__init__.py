"""Visits in native code on CPUs, for the factors that training on images spends its time on.

XLA:CPU writes every intermediate result of a visit to memory; these kernels go over the factors once. They compute
what `engine.visit` computes, for float32, and nothing else: everywhere else, and where they were not built, the same
visit is compiled by XLA.
"""

from ..registry import register, register_visit
from .kernel_set import CpuKernels
from .visits import VISITS

register("cpu", CpuKernels())
for kernel in VISITS:
    register_visit(kernel)
