"""The first call of a custom op without torch's compiler, whose import takes a second."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from torch._library import custom_ops

_KEPT = "__dynamo_disable"  # where torch keeps a kernel that the compiler does not look into


def without_compiler() -> None:
    """Let our ops run in a process that compiles nothing.

    Torch hides the kernel of an op from its compiler, and imports the compiler to tell it so. Where nobody has imported
    it, nobody needs to be told. In a version of torch that keeps the kernel elsewhere, this changes nothing.
    """
    for name, op in list(getattr(custom_ops, "OPDEFS", {}).items()):
        if name.startswith("knockgraph::"):
            for kernel in op._backend_fns.values():
                function = getattr(kernel, "__wrapped__", None)
                if function is not None and not hasattr(function, _KEPT):
                    setattr(function, _KEPT, partial(_called, function))


def _called(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    if "torch._dynamo" not in sys.modules:
        return function(*arguments, **options)
    delattr(function, _KEPT)  # from now on as torch does it
    import torch._dynamo

    hidden = torch._dynamo.disable(function)  # type: ignore[no-untyped-call]
    setattr(function, _KEPT, hidden)
    return hidden(*arguments, **options)
