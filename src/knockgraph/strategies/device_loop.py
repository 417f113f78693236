"""Strategy ``device-loop``: incidence map on the device, a Python loop over samples and genes."""

from __future__ import annotations

import torch

from knockgraph.screen import PerturbationBatch
from knockgraph.strategies.device_tables import IncidenceStrategy
from knockgraph.strategies.edge_masks import EdgeMaskedGraphs


class DeviceLoop(IncidenceStrategy):
    """Masks made on the device gene by gene; each step of the loop reads numbers from the device and waits.

    Kept for comparison, to show the cost of waiting.
    """

    name = "device-loop"

    def _view(self, batch: PerturbationBatch) -> EdgeMaskedGraphs:
        masks = []
        for r, num_edges in enumerate(self.num_edges):
            ptr, edge = self.incidence(r)
            mask = torch.ones(num_edges, batch.num_columns, dtype=torch.bool, device=self.device)
            for b in range(batch.num_columns):
                first = int(batch.perturbation_indices_ptr[b].item())
                last = int(batch.perturbation_indices_ptr[b + 1].item())
                for k in range(first, last):
                    gene = int(batch.perturbation_indices[k].item())
                    mask[edge[int(ptr[gene].item()) : int(ptr[gene + 1].item())].long(), b] = False
            masks.append(mask)
        return EdgeMaskedGraphs(self, batch, masks)
