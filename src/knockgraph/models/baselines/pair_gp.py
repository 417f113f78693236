"""A Gaussian process over pairs of genes that uses the networks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from knockgraph.errors import BaselineError
from knockgraph.graph import CellGraph
from knockgraph.models.baselines.baseline import (
    Floats,
    GenotypeRows,
    same_graph,
    sums,
)
from knockgraph.models.baselines.joint_pair_model import JointPairModel
from knockgraph.models.baselines.low_rank import LowRank
from knockgraph.models.baselines.pair_model import Device
from knockgraph.models.kernels.beyond_pairs import TripleTerm
from knockgraph.models.kernels.measured import PairRows
from knockgraph.models.kernels.pair_process import PairProcess, ProcessSettings, profile_kernel
from knockgraph.models.kernels.propagation import MOST_GENES, RIDGES, Factors, factorised, learned_kernel, ridge_mixture
from knockgraph.models.kernels.similarity import Similarities, kernel
from knockgraph.models.kernels.soft_impute import soft_impute
from knockgraph.models.kernels.spread import GeneSpread
from knockgraph.progress import Pace
from knockgraph.screen.ragged import Ints

_SEARCH: tuple[tuple[str, tuple[float, ...]], ...] = (
    ("network", (0.6, 0.4, 0.85)),
    ("noise", (0.8, 0.35)),
    ("scale_power", (1.7, 0.6)),
)
WHERE = {False: "seen genes", True: "unseen genes"}
_MORE_NOISE = (1.6, 3.2, 6.4, 12.8, 25.6)  # tried one after another for as long as more is better
_GAIN = 0.005  # in correlation
_PAIR_SHARES = (1.0, 0.5, 0.25)
_LOW_RANK_SHARES = (0.25, 0.5, 0.75)
_SHRINK = 3.0  # as if every gene had this many more experiments of the usual spread


class Shares(NamedTuple):
    """How much of a prediction comes from where."""

    pairs: float = 1.0  #: of what is predicted beyond effects of single genes, how much is used
    low_rank: float = 0.0  #: how much of the prediction is then that of :class:`LowRank`

    def mixed(self, alone: Floats, whole: Floats, low_rank: Floats) -> Floats:
        """The prediction, of that of single genes alone, the whole, and that of :class:`LowRank`."""
        own = alone + self.pairs * (whole - alone)
        return own + self.low_rank * (low_rank - own)


@dataclass(frozen=True)
class Choices:
    """What a validation part decides about a fit.

    Attributes:
        filling: Settings of the first posterior.
        settings: Of the second.
        ridge: λ of unseen genes.
        triples: Whether a term of triples is added.
        share: The weight of attention.
        steps: For how long attention is learned.
        corrected: Which corrections are learned: of pairs of seen genes, of those with an unseen one.
        shares: See :class:`Shares`, where all genes are seen, and where one is unseen.
    """

    filling: ProcessSettings
    settings: ProcessSettings
    ridge: float
    triples: bool = False
    share: float = 0.0
    steps: int = 0
    corrected: tuple[bool, ...] = ()
    shares: tuple[Shares, Shares] = (Shares(), Shares())


class PairGP(JointPairModel):
    r"""A Gaussian process over pairs, whose kernel combines similarity of interactions and proximity in the networks.

    With the residuals R that effects leave, filled by soft-impute where nothing was measured to :math:`F = V w V^\top`,

    .. math::
        \operatorname{cov}(f_{ij}, f_{kl}) = v (K_{ik} K_{jl} + K_{il} K_{jk}), \qquad
        K = (1 - a) V |w|^{1.3} V^\top + a\, K_\mathrm{net} \odot (\sigma \sigma^\top)^q + d\, \mathrm{diag}(\sigma^3),

    both kernels with mean diagonal 1, :math:`\sigma_i` the root mean square of gene i's residuals over its mean,
    v the variance of R, and an error of variance :math:`s v (\sigma_i \sigma_j)^{0.7}` per measurement. The network
    kernel :math:`\sum_r w_r e^{T_r (c_r - 1)}` has weights and sharpness learned with each gene left out in turn
    (:func:`~knockgraph.models.kernels.propagation.learned_kernel`); networks that say nothing lose their weight.
    :math:`\hat Y` is the posterior mean (:class:`~knockgraph.models.kernels.pair_process.PairProcess`), computed twice:
    the second time F is filled by the first posterior mean instead of soft-impute.

    A genotype of several genes is the sum of its pairs, in the fit too; where there are such, a small term of triples
    is added (:class:`~knockgraph.models.kernels.beyond_pairs.TripleTerm`). An unseen gene is a mixture of seen ones by
    kernel ridge regression on :math:`K_\mathrm{net}`.

    Several phenotypes, such as those of joined screens, each have effects, variance and noise of their own, and learn
    from each other where that helps (:class:`~knockgraph.models.baselines.joint_pair_model.JointPairModel`).

    a, q and s of the second posterior, and the ridge, are chosen by the validation part where there is one, one after
    another from the defaults; more and more noise is tried for as long as that helps. The first posterior takes what
    was chosen, too, if that is better. At last the validation part says how much of all this is used: :math:`\hat y =
    s + w\,(f - s)`, with the constant and the effects of the seen genes alone, :math:`s = c + \sum_g b_g`, and the
    whole :math:`f`. Where the whole is not better by more than one standard error, w is 0. There is one w for genotypes
    of seen genes, and one for those with an unseen gene. In the same way, a share of the prediction is that of
    :class:`~knockgraph.models.baselines.low_rank.LowRank`, which helps in small screens of larger genotypes.

    Args:
        graph: The cell graph.
        relations: Networks to use; by default all.
        features: Gene features to use; by default all but those that repeat the networks.
        weights: ``learned``, or ``mean``: all networks and features count the same.
        network: a, by default chosen (0.75); so are the next two.
        noise: s (0.5).
        scale_power: q (1.2).
        ridge: λ of unseen genes, by default chosen (0.2).
        device: Where it is fitted; ``auto``: on a GPU if there is one.
        together: Whether phenotypes learn from each other.
    """

    needs_graph = True

    def __init__(
        self,
        graph: CellGraph,
        relations: Sequence[str] | None = None,
        features: Sequence[str] | None = None,
        weights: Literal["learned", "mean"] = "learned",
        network: float | None = None,
        noise: float | None = None,
        scale_power: float | None = None,
        ridge: float | None = None,
        device: Device = "auto",
        together: bool = True,
    ) -> None:
        super().__init__(device, together)
        if weights not in ("learned", "mean"):
            raise BaselineError(f"weights is {weights!r}; use learned or mean")
        if network is not None and not 0 <= network <= 1:
            raise BaselineError(f"network is {network}, but it must be between 0 and 1")
        for name, value in (("noise", noise), ("scale_power", scale_power), ("ridge", ridge)):
            if value is not None and not 0 < value < float("inf"):
                raise BaselineError(f"{name} is {value}, but it must be positive")
        self.graph = graph
        self.relations, self.features, self.weights = relations, features, weights
        given = {"network": network, "noise": noise, "scale_power": scale_power}
        self.given = {name: value for name, value in given.items() if value is not None}
        self.given_ridge = ridge
        self._forget()

    def _forget(self) -> None:
        self.process: PairProcess | None = None
        self.triples: TripleTerm | None = None
        self._last: tuple[Ints, Tensor] | None = None
        self._solver: tuple[Tensor, float, Factors] | None = None  # the last, because every choice uses it
        self._seen: Similarities | None = None
        self.spreads: GeneSpread | None = None
        self._between: Tensor | None = None  # similarities of the seen genes, during the fit
        self.shares = {False: Shares(), True: Shares()}
        self.low_rank = LowRank()

    def _fit_again(self, genotypes: GenotypeRows, y: Floats) -> None:
        self._before = self._choices() if self.process is not None else None
        self._fit(genotypes, y)
        self._before = None

    def _choices(self) -> Choices:
        """What the validation part has decided."""
        shares = self.shares[False], self.shares[True]
        return Choices(self.filling, self.settings, self.ridge, self.triples is not None, shares=shares)

    def _fit(self, genotypes: GenotypeRows, y: Floats) -> None:
        same_graph(self._name, self.graph, genotypes)
        self._forget()
        self.pace = Pace(self._name)
        super()._fit(genotypes, y)
        if self.process is not None:
            self._correct(genotypes, y)
            self._choose_shares(genotypes, y)

    def _correct(self, genotypes: GenotypeRows, y: Floats) -> None:
        """Learn what is left, in a subclass."""

    def _choose_shares(self, genotypes: GenotypeRows, y: Floats) -> None:
        """See the class."""
        if self._before is not None:
            self.shares = dict(zip((False, True), self._before.shares, strict=True))
            if self._mixes_low_rank:
                self.low_rank._fit(genotypes, y)
            return
        held_out = {unseen: rows for unseen in (False, True) if (rows := self._chosen_rows(unseen)) is not None}
        if held_out:
            self.low_rank._fit(genotypes, y)
        for unseen, (new, measured) in held_out.items():
            parts = self._of_single_genes(new), self._in_full(new), self.low_rank._predict(new)
            kept = Shares(0.0)
            for choices in (
                [Shares(share) for share in _PAIR_SHARES],
                [
                    *(Shares(share, more) for share in (*_PAIR_SHARES, 0.0) for more in _LOW_RANK_SHARES),
                    Shares(0.0, 1.0),
                ],
            ):
                missed = (measured - kept.mixed(*parts)) ** 2
                gains = {one: missed - (measured - one.mixed(*parts)) ** 2 for one in choices}
                best, gain = max(gains.items(), key=lambda one: float(one[1].mean()))
                if gain.mean() > gain.std() / np.sqrt(len(gain)):
                    kept = best
            self.shares[unseen] = kept

    @property
    def _mixes_low_rank(self) -> bool:
        return any(one.low_rank for one in self.shares.values())

    def _settle(self) -> None:
        super()._settle()
        for one in (*self._each, *self._alone) or (self,):
            one._between = None

    _name = "pair-gp"
    _left_out = f"weights of networks and features are learned from {MOST_GENES:,} of the genes"
    _before: Choices | None = None  # of an earlier fit, to be kept

    def _chosen(self) -> dict[str, float]:
        if self.process is None:
            return {}
        found = {name: getattr(self.settings, name) for name, _ in _SEARCH} | {"ridge": self.ridge}
        weights = [] if self.weight is None else self.weight.tolist()
        for unseen, shares in self.shares.items():
            found |= {f"share of pairs, {WHERE[unseen]}": shares.pairs}
            found |= {f"share of low-rank, {WHERE[unseen]}": shares.low_rank}
        return found | {f"weight of {name}": w for name, w in zip(self.similarities.names, weights, strict=True)}

    def _state(self) -> dict[str, Any]:
        found = super()._state()
        if self.process is None:  # no training row had a pair
            return found
        process, triples, rows = self.process, self.triples, self.rows
        return found | {
            "network": [self.network_kernel, self.sharpness, self.weight, self.ridge],
            "process": [process.kernel, process.noise, process.variance],
            "rows": [rows.row, rows.first, rows.second, rows.num_rows],
            "settings": asdict(self.settings),
            "triples": None if triples is None else [triples.direction, triples.weight],
            "spreads": None if self.spreads is None else list(self.spreads),
            "shares": [list(self.shares[False]), list(self.shares[True])],
            "low_rank": self.low_rank._state() if self._mixes_low_rank else None,
        }

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore(state)
        self._forget()
        if "process" not in state:
            return
        self.network_kernel, self.sharpness, self.weight, self.ridge = map(self._here, state["network"])
        row, first, second, count = map(self._here, state["rows"])
        self.rows = PairRows(row, first, second, count, len(self.seen))
        kernel, noise, variance = map(self._here, state["process"])
        self.process = PairProcess(kernel, self.rows, noise, variance)
        self.settings = ProcessSettings(**state["settings"])
        if state["triples"] is not None:
            self.triples = TripleTerm(*map(self._here, state["triples"]))
        self.shares = {
            unseen: Shares(*one) for unseen, one in zip((False, True), state.get("shares", ((), ())), strict=True)
        }
        if state.get("low_rank") is not None:
            self.low_rank._restore(state["low_rank"])
        if state.get("spreads") is not None:  # earlier runs have none
            self.spreads = GeneSpread(*map(self._here, state["spreads"]))

    def _here(self, value: Any) -> Any:
        return value.to(self.device) if isinstance(value, Tensor) else value

    @property
    def similarities(self) -> Similarities:
        """Of the seen genes."""
        if self._seen is None:
            self._seen = self._similarities(self.seen)
        return self._seen

    def _fill(self, y: Tensor) -> None:
        """Profiles, filled by soft-impute, and where they were measured."""
        measured, self.known = self._profiles(y)
        self.filled = torch.where(self.known, measured, soft_impute(measured, self.known)[-1])

    def _fit_pairs(self, y: Tensor, count: Tensor) -> None:
        if len(self.seen) > MOST_GENES:
            size = f"{len(self.seen):,} genes and {len(y):,} genotypes on {self.device.type.upper()}"
            self.pace.note(f"{size}: {self._left_out}")
        self._fill(y)
        self.pace.tell("similarities of genes")
        similarity = self._between = self.similarities.to(self.similarities)
        self.sharpness, self.weight = self.similarities.sharpness, None
        if self.weights == "learned" and len(similarity):
            self.pace.tell("weights of networks and features")
            self.weight, self.sharpness = learned_kernel(similarity, self.sharpness, self.filled, self.known)
        self.network_kernel = kernel(similarity, self.sharpness, self.weight)
        if len(similarity) == 0:
            self.network_kernel = torch.zeros_like(self.filled)
        self._fit_process(y, count)
        self._fit_triples(y)
        self._fit_mixture(similarity)

    def _fit_process(self, y: Tensor, count: Tensor) -> None:
        """The posterior, after one whose mean fills the profiles; the settings are chosen by the second, and then for
        the first, too, if that is better.
        """
        self.scale = scale = self._scale(y)
        variance = (y.square() / self.rows.pairs(y)).mean()

        def posterior(profile: Tensor, settings: ProcessSettings) -> tuple[PairProcess, Tensor]:
            whole = settings.kernel(profile, self.network_kernel, scale)
            noise = settings.row_noise(self.rows, scale, variance, count)
            process = PairProcess(whole, self.rows, noise, variance)
            return process, process.mean(y)

        imputed = profile_kernel(self.filled)

        def filled(settings: ProcessSettings) -> Tensor:
            mean = posterior(imputed, settings)[1]
            return profile_kernel(torch.where(self.known, self.filled, mean))

        default = replace(ProcessSettings(), **self.given)
        before = self._before
        self.filling, self.settings = (default, default) if before is None else (before.filling, before.settings)
        self.pace.tell("the first posterior")
        profile = filled(self.filling)
        self.pace.tell("the second posterior")
        self.process, self.scores = posterior(profile, self.settings)
        rows = self._chosen_rows(unseen=False)
        if rows is None:
            return
        score = self._score(rows)

        def better(profile: Tensor, settings: ProcessSettings, by: float = 0.0) -> bool:
            nonlocal score
            kept = self.scores
            process, self.scores = posterior(profile, settings)
            if (its := self._score(rows)) <= score + by:
                self.scores = kept
                return False
            score, self.process, self.settings = its, process, settings
            return True

        for name, value in ((name, value) for name, values in _SEARCH for value in values if name not in self.given):
            self.pace.tell(f"choosing settings: {name} {value}")
            better(profile, replace(self.settings, **{name: value}))
        noisy = self.settings.noise == max(dict(_SEARCH)["noise"]) and "noise" not in self.given
        for value in _MORE_NOISE if noisy else ():
            self.pace.tell(f"choosing settings: noise {value}")
            if not better(profile, replace(self.settings, noise=value), by=_GAIN):
                break
        if self.settings != default:
            self.pace.tell("both posteriors with these settings")
            if better(filled(self.settings), self.settings):
                self.filling = self.settings

    def _scale(self, y: Tensor) -> Tensor:
        """:math:`\\sigma`, mean 1: the root mean square of the residuals of each gene's rows."""
        ones = torch.ones_like(y)
        squares, number = self.rows.of_genes(y.square()), self.rows.of_genes(ones)
        mean = y.square().mean()
        if not bool(mean > 0):
            return torch.ones_like(squares)
        scale = ((squares + _SHRINK * mean) / (number + _SHRINK)).sqrt()
        return scale / scale.mean()

    def _fit_triples(self, y: Tensor) -> None:
        size = np.diff(self.genotypes.ptr)
        if not (size > 2).any() or (self._before is not None and not self._before.triples):
            return
        assert self.process is not None
        left = y - self.rows.collect(self.scores)
        self.triples = TripleTerm.of(self.process.kernel)
        self.triples.fit(self._triple_features(self.genotypes), left)
        rows = self._chosen_rows(unseen=False)
        if rows is not None:
            with_them = self._score(rows)
            kept, self.triples = self.triples, None
            if with_them > self._score(rows):
                self.triples = kept

    def _triple_features(self, genotypes: GenotypeRows) -> Tensor:
        assert self.triples is not None
        known = self.place[genotypes.genes] >= 0
        gene = torch.from_numpy(self.place[genotypes.genes[known]]).to(self.device)
        row = torch.from_numpy(genotypes.row[known]).to(self.device)
        return self.triples.features(row, gene, len(genotypes))

    def _predict(self, genotypes: GenotypeRows) -> Floats:
        found = self._in_full(genotypes)
        if set(self.shares.values()) == {Shares()}:
            return found
        alone = self._of_single_genes(genotypes)
        low_rank = self.low_rank._predict(genotypes) if self._mixes_low_rank else alone
        mixed = {unseen: shares.mixed(alone, found, low_rank) for unseen, shares in self.shares.items()}
        return np.where(self.with_unseen(genotypes), mixed[True], mixed[False])

    def _of_single_genes(self, genotypes: GenotypeRows) -> Floats:
        """The constant and the effects of seen genes; those of unseen ones are 0."""
        return self.constant + sums(genotypes.row, self.effect[genotypes.genes], len(genotypes))

    def _in_full(self, genotypes: GenotypeRows) -> Floats:
        """With all that is predicted beyond effects of single genes."""
        found = super()._predict(genotypes)
        if self.triples is not None:
            found = found + (self._triple_features(genotypes) @ self.triples.weight).double().cpu().numpy()
        return found

    def _fit_mixture(self, similarity: Tensor) -> None:
        del similarity
        self.pace.tell("mixtures for unseen genes")
        self.ridge = self.given_ridge or (RIDGES[0] if self._before is None else self._before.ridge)
        rows = self._chosen_rows(unseen=True)
        if rows is None or self.given_ridge is not None:
            return
        scores = []
        for value in RIDGES:
            self.ridge = value
            scores.append(self._score(rows))
        self.ridge = RIDGES[int(np.argmax(scores))]

    def _mixture(self, unseen: Ints) -> Tensor:
        if not hasattr(self, "ridge") or not self.similarities.tables:
            return super()._mixture(unseen)
        return self._mixed(self.network_kernel, self._across(unseen))

    def _across(self, unseen: Ints) -> Tensor:
        """Similarities of unseen to seen genes; the last ones are cached, because every choice uses them."""
        if self._last is None or not np.array_equal(self._last[0], unseen):
            self._last = unseen, self._similarities(unseen).to(self.similarities)
        return self._last[1]

    def _mixed(self, network: Tensor, across: Tensor) -> Tensor:
        """:math:`a` of genes by their similarities ``[tables, genes, others]`` to others with this network kernel."""
        if self._solver is None or self._solver[0] is not network or self._solver[1] != self.ridge:
            self._solver = network, self.ridge, factorised(network, self.ridge)
        return ridge_mixture(self._solver[2], kernel(across, self.sharpness, self.weight))

    def _similarities(self, genes: Ints) -> Similarities:
        chosen = torch.from_numpy(np.asarray(genes, dtype=np.int64))
        more = self._profiles_of_others(self.graph.num_genes)
        return Similarities.of(self.graph, chosen, self.relations, self.features, self.device, more)

    def _measure_spread(self) -> None:
        if self.process is None or not bool(self.process.variance > 0):
            return
        self.pace.tell("how far measurements are from predictions")
        self.spreads = GeneSpread.of(self.process, self.scale)

    def _spread(self, genotypes: GenotypeRows) -> Floats | None:
        r"""Of a genotype with the pairs :math:`g < h`, from posterior, prior and noise,

        .. math:: s_P^2 = \sum_{g < h} V_{gh} + s\,v\, \underset{g < h}{\operatorname{mean}}\,
            (\sigma_g \sigma_h)^{0.7}, \quad V_{gh} = \frac{V_g V_h}{\operatorname{mean} V} ,

        with the mean posterior variance :math:`V_g` of the pairs of a gene; :math:`V_{gh} = v K_{gg} K_{hh}`, what is
        known before any measurement, where a gene is unseen. A single gene has the noise of a pair with itself.
        """
        if self.spreads is None:
            return None
        n = genotypes.num_genes
        values = np.ones((3, n))
        values[:, self.seen] = torch.stack(self.spreads).double().cpu().numpy()
        unseen = np.setdiff1d(genotypes.genes, self.seen)
        if len(unseen):
            mixed = self.spreads.mixed(self._mixtures_of(unseen).share)
            values[:, unseen] = torch.stack(mixed).double().cpu().numpy()
        scale, posterior, prior = values
        row, code = genotypes.pairs()
        g, h = code // n, code % n
        mean = max(float(self.spreads.posterior.mean()), 1e-12)
        known = (self.place[g] >= 0) & (self.place[h] >= 0)
        variance = np.where(known, posterior[g] * posterior[h] / mean, prior[g] * prior[h])
        power, size = self.settings.noise_power, np.diff(genotypes.ptr)
        alone = sums(genotypes.row, scale[genotypes.genes] ** (2 * power), len(genotypes))
        pairs = sums(row, (scale[g] * scale[h]) ** power, len(genotypes))
        number = np.maximum(size * (size - 1) // 2, 1)
        noise = np.select([size == 0, size == 1], [np.ones(len(size)), alone], pairs / number)
        assert self.process is not None
        unit = self.settings.noise * float(self.process.variance)
        found: Floats = np.sqrt(sums(row, variance, len(genotypes)) + unit * np.maximum(noise, 1e-6))
        return found
