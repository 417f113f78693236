"""Errors that libraries raise in a training and that can be foreseen: each becomes one sentence with a way out."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from knockgraph.errors import KnockgraphError
from knockgraph.train.config import Config, ConfigError
from knockgraph.train.memory import is_out_of_memory

_SHARED = "too little shared memory (/dev/shm) or too few open files (ulimit -n)"
_LATE = ("timed out", "timeout", "time out")
_GONE = ("connection closed by peer", "connection reset by peer", "broken pipe", "connection refused", "nccl", "gloo")


class TrainingStoppedError(KnockgraphError, RuntimeError):
    """Something outside of the model ended a training."""


@contextmanager
def explained(config: Config, directory: Path) -> Iterator[None]:
    """Turn the foreseeable errors of a training inside the block into sentences."""
    try:
        yield
    except KnockgraphError:
        raise
    except (RuntimeError, ValueError, KeyError, OSError) as error:
        sentence = _sentence(error, config, f"knockgraph train run_dir={directory} resume=true")
        if sentence is None:
            raise
        raise TrainingStoppedError(sentence) from error


def _sentence(error: Exception, config: Config, resume: str) -> str | None:
    text = str(error)
    lower = text.lower()
    workers = config.loader.num_workers
    if "loading state_dict" in text or "loaded state dict" in text:
        return (
            "the checkpoint does not fit the model of config.yaml, which has been changed since the run was started; "
            "put the values of that time back, or start a new run"
        )
    if "without overflow" in text:
        return f"config key 'optimizer.lr': steps of a learning rate of {config.optimizer.lr:g} overflow; lower it"
    if workers and "DataLoader timed out" in text:
        return (
            f"the loader's workers have not made a batch in {config.loader.timeout} s (loader.timeout): most likely "
            f"there is {_SHARED}; continue without workers: {resume} loader.num_workers=0"
        )
    if workers and ("DataLoader worker" in text or "ancdata" in text or "shared memory" in lower):
        return (
            f"a worker of the loader has ended ({text.splitlines()[0].rstrip('. ')}): out of memory, killed, or "
            f"{_SHARED}; continue with fewer workers, or with none: {resume} loader.num_workers=0"
        )
    if isinstance(error, OSError):
        return f"{_SHARED} (loader.num_workers={workers})" if error.errno == errno.EMFILE else None
    if config.trainer.devices * config.trainer.num_nodes > 1:
        if any(word in lower for word in _LATE):
            return (
                f"a process of this run has not answered for {config.trainer.process_timeout} s "
                f"(trainer.process_timeout): it hangs, or its machine does; continue with {resume}"
            )
        if any(word in lower for word in _GONE):
            return f"another process of this run has ended, and this one cannot go on alone; continue with {resume}"
    return None


@contextmanager
def model_that_fits(config: Config) -> Iterator[None]:
    """Turn an out-of-memory error while a model is made into a sentence."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise ConfigError(
            f"config key 'model.options': the model {config.model.name} does not fit into the memory with these "
            "options; use fewer channels or layers"
        ) from error
