"""Expected errors of libraries during training: each becomes one sentence that says what to do."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from knockgraph.errors import ConfigError, KnockgraphError, TrainingStoppedError
from knockgraph.train.checkpoints import any_saved, resume_command
from knockgraph.train.memory import is_out_of_memory
from knockgraph.train.schema import Config

_SHORTAGE = "too little memory, shared memory (/dev/shm) or open files (ulimit -n), or it was killed"
_LATE = ("timed out", "timeout", "time out")
_GONE = ("connection closed by peer", "connection reset by peer", "broken pipe", "connection refused", "nccl", "gloo")


@contextmanager
def explained(config: Config, directory: Path) -> Iterator[None]:
    """Turn the foreseeable errors of a training inside the block into sentences."""
    try:
        yield
    except KnockgraphError:
        raise
    except (RuntimeError, ValueError, KeyError, OSError) as error:
        what = _sentence(error, config)
        if what is None:
            raise
        saved = any_saved(directory / "checkpoints")
        how = f"continue with {resume_command(directory)}" if saved else "start the run again"
        raise TrainingStoppedError(what.format(how=how, having=how if saved else f"{how} with")) from error


def _sentence(error: Exception, config: Config) -> str | None:
    """What happened, with a placeholder for how to continue."""
    text = str(error)
    first = text.splitlines()[0].rstrip(". ").replace("{", "(").replace("}", ")") if text else ""
    lower = text.lower()
    if "loading state_dict" in text or "loaded state dict" in text:
        return (
            "the checkpoint does not fit the model of config.yaml, which has been changed since the run was started; "
            "restore the original values, or start a new run"
        )
    if "without overflow" in text:
        return f"config key 'optimizer.lr': steps of a learning rate of {config.optimizer.lr:g} overflow; lower it"
    if config.loader.num_workers:
        if "DataLoader timed out" in text:
            late = f"the loader's workers have made no batch in {config.loader.timeout} s (loader.timeout)"
            return f"{late}: {_SHORTAGE}; {{having}} loader.num_workers=0"
        if "DataLoader worker" in text or "ancdata" in text or getattr(error, "errno", None) == errno.EMFILE:
            return f"a worker of the loader has ended ({first}): {_SHORTAGE}; {{having}} loader.num_workers=0"
    if config.trainer.devices * config.trainer.num_nodes > 1:
        if any(word in lower for word in _LATE):
            return (
                f"a process of this run has not responded for {config.trainer.process_timeout} s "
                "(trainer.process_timeout): it hangs, or its machine does; {how}"
            )
        if any(word in lower for word in _GONE):
            return "another process of this run has ended, and this one cannot continue alone; {how}"
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
