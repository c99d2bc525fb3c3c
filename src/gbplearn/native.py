"""Native kernels: visits in C++, for the factors that training on images spends its time on.

XLA:CPU writes every intermediate result of a visit to memory; these kernels go over the factors once. They compute
what `visit` computes, for float32 on CPU, and nothing else: everywhere else, and where they were not built, the same
visit is compiled by XLA. `status()` shows whether they are on, and if not, why.

They are built three times: for processors with AVX-512, with AVX2, and for every processor. The environment chooses
before anything is compiled: `GBPLEARN_NATIVE=0` turns them off, `1` takes the best build (the default), `widest`,
`wide` or `basic` that one.
`using(Build.BASIC)` chooses within a `with` block.
"""

from .kernels.cpu.library import Build, KernelState, KernelStatus, available, built, status, using

# Old names lie below this module (`moved.py`): for those it is a package without a folder.
__path__: list[str] = []

__all__ = ["Build", "KernelState", "KernelStatus", "available", "built", "status", "using"]
