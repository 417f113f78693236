"""A layer of one relation; the hetero model makes one for each."""

from torch import nn


class NeighbourConv(nn.Module):
    degrees = False

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.linear = nn.Linear(in_channels, out_channels)

    def forward(self, view, relation, x):
        own = x.unsqueeze(1) if x.dim() == 2 else x
        return self.linear(own - view.aggregate(relation, x, "mean"))
