"""Losses of single samples, one for numbers and one for classes."""

import torch.nn.functional as F

from knockgraph.losses.pointwise import PointwiseLoss


class HuberLoss(PointwiseLoss):
    name = "huber"

    def __init__(self, delta: float = 1.0) -> None:
        super().__init__()
        self.delta = delta

    def per_sample(self, values, target):
        return F.huber_loss(values, target, reduction="none", delta=self.delta)


class FocalLoss(PointwiseLoss):
    name = "focal"
    classes = True

    def per_sample(self, values, target):
        entropy = F.binary_cross_entropy_with_logits(values, target, reduction="none")
        return (1 - (-entropy).exp()).square() * entropy
