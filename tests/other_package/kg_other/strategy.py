"""A strategy: edge masks straight from the keep-vector."""

from knockgraph.strategies.edge_masks import EdgeMaskedGraphs, EdgeStrategy


class KeepMask(EdgeStrategy):
    def _view(self, batch):
        keep, masks = batch.keep(), []
        for r in range(len(self.relation_names)):
            source, target = self.edge_index(r)
            masks.append(keep[target] & (keep[source] | (self.direction == "in")))
        return EdgeMaskedGraphs(self, batch, masks)
