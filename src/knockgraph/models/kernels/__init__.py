"""Kernel models of gene pairs: which genes are similar, and what their interactions say about a pair.

They work on tensors only; :mod:`knockgraph.models.baselines` turns them into models of screens. In the order of the
data: ``similarity`` (graph → genes × genes), ``measured`` (screen → pairs), ``soft_impute``, ``pair_process`` and
``beyond_pairs`` (seen genes), ``propagation`` and ``attention`` (unseen genes), ``correction`` (what they leave).
"""
