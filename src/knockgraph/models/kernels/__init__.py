"""Models of gene pairs by kernels: who is similar to whom, and what similar genes' interactions say about a pair.

Written for tensors alone; :mod:`knockgraph.models.baselines` makes models of screens from them. In the order of the
data: ``similarity`` (graph → genes × genes), ``measured`` (screen → pairs), ``soft_impute``, ``pair_process`` and
``beyond_pairs`` (seen genes), ``propagation`` and ``attention`` (unseen genes).
"""
