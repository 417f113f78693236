"""The three moments at which a run may be saved, and how Lightning's loops go on from each of them.

=============  =============================================================  ==========================
moment         what is behind it                                              what comes next
=============  =============================================================  ==========================
``step``       an optimizer step in the middle of an epoch, and its row       the next batch
``validation`` all batches of an epoch                                        its validation
``epoch``      an epoch: validation, scheduler, early stopping, its rows      the next epoch, or the end
=============  =============================================================  ==========================

Nothing is half done at any of them, so a resumed run does what the uninterrupted one would have done. Lightning's own
restart guesses the moment from counters and gets three things wrong (2.6.6): it leaves out the epoch after a checkpoint
of the last batch, a plateau scheduler's step in the first epoch, and a validation that early stopping then misses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

STEP, VALIDATION, EPOCH = "step", "validation", "epoch"


def go_on(trainer: Trainer, moment: str) -> None:
    """Set the restored loops to what comes after the moment; called when the training starts."""
    from lightning.pytorch.loops.evaluation_loop import RestartStage

    loop = trainer.fit_loop
    loop.restarting = False  # of the loops in it, too: an epoch from its start
    if moment == EPOCH:
        return
    loop.epoch_loop.restarting = True  # an epoch from where it was
    if moment == VALIDATION:
        validation = loop.epoch_loop.val_loop
        validation.restarting = False  # from its start
        validation._restart_stage = RestartStage.RESTARTED_MID_EVALUATION  # "go back and run it"


def between_epochs(loops: dict[str, Any]) -> None:
    """Save as if the next epoch had not been announced yet: the end of a run and of an epoch are then the same."""
    for counts in loops["fit_loop"]["epoch_progress"].values():
        counts["ready"] = counts["completed"]


def of_earlier_version(loops: dict[str, Any]) -> str:
    """The moment of a checkpoint that does not name it; its counters are moved on to that moment.

    Such checkpoints were saved at the end of a batch, of a validation (which is made again) or of a run.
    """
    fit = loops["fit_loop"]
    batches, epochs = fit["epoch_loop.batch_progress"], fit["epoch_progress"]["total"]
    if epochs["completed"] == epochs["ready"]:
        return EPOCH
    saved_in_batch = batches["total"]["completed"] < batches["total"]["processed"]
    for counts in (batches["total"], batches["current"]):
        counts["completed"] = counts["processed"]
    if batches["is_last_batch"]:
        return VALIDATION
    if saved_in_batch:
        fit["epoch_loop.state_dict"]["_batches_that_stepped"] += 1
    return STEP
