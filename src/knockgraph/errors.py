"""Every error that knockgraph raises on purpose. Each message says what is wrong, where, and how to fix it."""

from __future__ import annotations

from collections.abc import Sequence


class KnockgraphError(Exception):
    """Base of all errors that knockgraph raises on purpose; the command line prints the message as one sentence.

    A message is one line of printable characters, whatever a damaged file contains: no line breaks and no terminal
    control sequences.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(_one_line(message))


def _one_line(text: str) -> str:
    if text.isprintable():
        return text
    lines = " ".join(line.strip() for line in text.split("\n") if line.strip())
    shown = (c if c.isprintable() or c in "\u00a0\u202f\u2009" else ascii(c)[1:-1] for c in lines)
    return "".join(shown)


class GraphError(KnockgraphError, ValueError):
    """A cell graph cannot be built from what was given."""


class UnknownGeneError(KnockgraphError, KeyError):
    """Gene names that could not be resolved, all of them at once.

    Args:
        message: The sentence shown to the user.
        names: Every offending name, in order of appearance.
    """

    def __init__(self, message: str, names: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.names = tuple(names)

    def __str__(self) -> str:  # KeyError would show the repr of the message
        return str(self.args[0])


class PerturbationError(KnockgraphError, ValueError):
    """A batch of perturbations is malformed: an index is out of range, or a pointer does not match."""


class MissingPointerError(PerturbationError):
    """A PyG batch has no ``perturbation_indices_ptr``, so its samples cannot be told apart."""


class ScreenError(KnockgraphError, ValueError):
    """A table of experiments is malformed."""


class SplitError(ScreenError):
    """A split is empty, leaks, or belongs to another screen."""


class LabelError(ScreenError):
    """Labels cannot be trained on: missing, infinite or constant."""


class GeneListMismatchError(KnockgraphError, ValueError):
    """Something built for one gene list is used with another."""


class FileFormatError(KnockgraphError, ValueError):
    """A file is damaged, truncated, of another format or of a version this release cannot read."""


class NotPreparedError(KnockgraphError, RuntimeError):
    """A stored strategy was not prepared for the experiments it is asked for."""


class StrategyError(KnockgraphError, ValueError):
    """A strategy was given an option, or used in a way, that it does not allow."""


class ModelError(KnockgraphError, ValueError):
    """A model or layer was given an option, or perturbed graphs, that it cannot work with."""


class LossError(KnockgraphError, ValueError):
    """A loss was given an option, a prediction or a target that it does not allow."""


class BaselineError(KnockgraphError, ValueError):
    """A baseline was given an option or rows that it does not allow, or was used before it was fitted."""


class NoDosesError(BaselineError):
    """A baseline that knows deletions only was given genes with other values."""


class MissingPackageError(BaselineError):
    """A baseline needs a package that is not installed."""


class SourceError(KnockgraphError, ValueError):
    """A source does not have what was requested: a graph, a screen, an option."""


class DownloadError(KnockgraphError, OSError):
    """A file could not be fetched, or is not what it should be."""


class RegistryError(KnockgraphError, ValueError):
    """A name cannot be registered: it is taken, or what it stands for is of the wrong kind."""


class ConfigError(KnockgraphError, ValueError):
    """The configuration does not fit the schema."""


class WindowError(KnockgraphError, ValueError):
    """The run is too short for the requested recording."""


class BatchTooLargeError(KnockgraphError):
    """A batch does not fit into the memory."""


class NotFiniteError(KnockgraphError, ArithmeticError):
    """The training has diverged: a loss or a weight is NaN or infinite."""


class TrainingStoppedError(KnockgraphError, RuntimeError):
    """Something outside the model ended the training."""
