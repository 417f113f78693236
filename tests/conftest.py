"""What must hold before any test module is imported."""

import importlib.util
import os

import torch

# Triton reads this once, when it is imported, and PyG imports it: some other test may do so long before tests/ops.
if importlib.util.find_spec("triton") is not None and not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
