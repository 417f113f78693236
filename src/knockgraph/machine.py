"""Description of the machine, stored with every measurement."""

from __future__ import annotations

import os
import platform
from typing import Any

import torch


def describe_machine() -> dict[str, Any]:
    """Versions, cores and devices; JSON-safe."""
    cuda = (
        [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    )
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "cuda_devices": cuda,
    }
