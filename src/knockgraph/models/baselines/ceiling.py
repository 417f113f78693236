"""The best score that any model can reach, given the reproducibility of the experiment."""

from __future__ import annotations

import numpy as np

from knockgraph.errors import BaselineError
from knockgraph.models.baselines.baseline import Floats, GenotypeRows, sums
from knockgraph.screen import BoundScreen, ragged
from knockgraph.screen.ragged import Ints

_FEWEST = 10  # replicated genotypes


def reproducibility_ceiling(
    screen: BoundScreen, rows: Ints | None = None, phenotype: str | None = None
) -> float | None:
    r"""The best Pearson correlation that a model can have with these labels, or ``None`` if the error is unknown.

    A label is a true value plus an independent error, :math:`y = f + \varepsilon`. The best model predicts :math:`f`,
    and its correlation with the labels is

    .. math:: \operatorname{cor}(f, y) = \sqrt{\frac{\sigma_f^2}{\sigma_f^2 + \sigma_\varepsilon^2}} ,

    the square root of the correlation between replicates. Both variances come from the :math:`a` genotypes measured
    more than once (:math:`n_g` times, :math:`N` in all), by a one-way analysis of variance:

    .. math::

        \sigma_\varepsilon^2 = \frac{\sum_g \sum_{i \in g} (y_i - \bar y_g)^2}{N - a}, \qquad
        \sigma_f^2 = \max\Big(0,\ \frac{1}{n_0} \Big(\frac{\sum_g n_g (\bar y_g - \bar y)^2}{a - 1}
            - \sigma_\varepsilon^2\Big)\Big), \qquad n_0 = \frac{N - \sum_g n_g^2 / N}{a - 1} .

    Both from the same genotypes, because those worth a second measurement often have larger values and larger errors
    than the rest; the ceiling is theirs, and of the whole screen as far as they represent it. Fewer than ten tell too
    little. Then :math:`\sigma_\varepsilon^2` is the mean square of the stated errors of the labels, if the screen has
    the statistic ``PHENOTYPE.sem``, or else ``PHENOTYPE.std``, and
    :math:`\sigma_f^2 + \sigma_\varepsilon^2` the variance of the labels.

    Args:
        screen: The experiments.
        rows: Only those at these positions; all by default.
        phenotype: Which; may be left out where there is only one.
    """
    if phenotype is None:
        if len(screen.phenotype_types) != 1:
            names = ", ".join(screen.phenotype_types)
            raise BaselineError(
                f"this screen has several phenotypes ({names}); give the one for which to compute the ceiling"
            )
        phenotype = screen.phenotype_types[0]
    if phenotype not in screen.phenotype_types:
        raise BaselineError(f"the screen has no phenotype {phenotype!r}; it has {', '.join(screen.phenotype_types)}")
    rows = np.arange(len(screen)) if rows is None else np.asarray(rows)
    y = screen.values[:, screen.phenotype_types.index(phenotype)].double().cpu().numpy()[rows]
    rows, y = rows[~np.isnan(y)], y[~np.isnan(y)]
    reliability = _between_replicates(screen, rows, y)
    if reliability is None:
        reliability = _from_stated_errors(screen, rows, y, phenotype)
    return None if reliability is None else float(np.sqrt(reliability))


def _between_replicates(screen: BoundScreen, rows: Ints, y: Floats) -> float | None:
    genotypes = GenotypeRows.of(screen, rows)
    codes, most = genotypes.genes, screen.num_genes
    if genotypes.effect is not None:
        codes, most = ragged.valued_codes(codes, genotypes.effect), len(codes)
    group = ragged.same_set(codes, genotypes.ptr, max(most, 1))
    repeated = np.bincount(group)[group] > 1 if len(group) else np.zeros(0, dtype=bool)
    _, group, count = np.unique(group[repeated], return_inverse=True, return_counts=True)
    if len(count) < _FEWEST:
        return None
    y, total = y[repeated], int(count.sum())
    mean = sums(group, y, len(count)) / count
    error = float(np.square(y - mean[group]).sum()) / (total - len(count))
    between = float(count @ np.square(mean - y.mean())) / (len(count) - 1)
    n0 = (total - float(np.square(count).sum()) / total) / (len(count) - 1)
    signal = max(0.0, (between - error) / n0)
    return signal / (signal + error) if signal + error > 0 else None


def _from_stated_errors(screen: BoundScreen, rows: Ints, y: Floats, phenotype: str) -> float | None:
    names = [f"{phenotype}.{kind}" for kind in ("sem", "std")]
    name = next((name for name in names if name in screen.phenotype_stat_types), None)
    if name is None:
        return None
    std = screen.stat_values[:, screen.phenotype_stat_types.index(name)].double().cpu().numpy()[rows]
    stated = std[~np.isnan(std)]
    variance = float(y.var(ddof=1)) if len(y) > 1 else 0.0
    if len(stated) == 0 or variance == 0.0:
        return None
    return max(0.0, 1.0 - float(np.square(stated).mean()) / variance)
