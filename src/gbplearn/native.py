"""Native kernels: visits in C++, for the factors that training on images spends its time on.

XLA:CPU writes every intermediate result of a visit to memory; these kernels go over the factors once. They compute
what `visit` computes, for float32 on CPU, and nothing else: everywhere else, and where they were not built, the same
visit is compiled by XLA. `GBPLEARN_NATIVE=0` turns them off; `status()` returns whether they are on, and if not, why.
"""

from .kernels.cpu.library import KernelState, KernelStatus, available, built, status

__all__ = ["KernelState", "KernelStatus", "available", "built", "status"]
