"""CUDA and NCCL imitated on CPUs, for programs that know nothing else.

The sharding, the state dicts, the optimizers, clipping, accumulation, the dtypes and the sequence
of collectives are torch's own and the same as on GPUs. Streams and events do nothing, all memory is
the host's, a process group of NCCL is one of gloo, and kernels are those of the CPU.
"""

from __future__ import annotations

LIMITS = (
    "CPU simulation: CUDA streams, prefetching, NCCL, kernels for GPUs (fused, flash, Triton), "
    "torch.compile, GPU memory and speed"
)
"""What a simulated run does not check, for the report."""

PATCH = "CUDA and NCCL were imitated on CPUs"


def install(own: int = 1) -> None:
    """Imitate, from here on; called right after torch was imported.

    Args:
        own: how many devices a program sees that makes its ranks itself.
    """
    from fsdp_migrate.verify.simulate import arguments, devices, groups

    devices.install(own)
    groups.install()
    arguments.install()
