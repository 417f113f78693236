"""yeast-GEM and other metabolic models, YAML or SBML, read by cobra once and then from a cache."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import lzma
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from knockgraph.container import read_container, write_container
from knockgraph.errors import FileFormatError, KnockgraphError
from knockgraph.files import cache_folder
from knockgraph.graph import Reaction

FORMAT = "knockgraph.reactions"
VERSION = 1
_MOST_BYTES = 1 << 29  # of an uncompressed model; yeast-GEM has about ten million


def read_model(path: Path, cache: Path | None = None) -> list[Reaction]:
    """The reactions of a metabolic model.

    cobra takes half a minute for yeast-GEM, so the reactions are stored in ``cache`` under the hash of the file and
    read
    from there the next time; a damaged or unwritable cache is ignored.

    Args:
        path: ``yeast-GEM.yml``, ``.xml`` (SBML), also ``.gz`` or ``.xz``.
        cache: A folder, by default :func:`cache_folder`.
    """
    data = _bytes(path)
    digest = hashlib.sha256(data).hexdigest()
    stored = (cache or cache_folder()) / "reactions" / f"{digest[:32]}.safetensors"
    if stored.is_file():
        with contextlib.suppress(KnockgraphError, AttributeError, KeyError, TypeError, ValueError):
            document = read_container(stored, FORMAT, range(1, VERSION + 1)).document
            return [_stored(*row) for row in document["reactions"]]
    reactions = list(_reactions(_cobra_model(path, data)))
    if not reactions:
        raise FileFormatError(f"{path} holds no reaction; is it a metabolic model?")
    rows = [[r.id, dict(r.stoichiometry), r.lower_bound, r.upper_bound, r.gene_rule, r.growth] for r in reactions]
    with contextlib.suppress(KnockgraphError, OSError):
        stored.parent.mkdir(parents=True, exist_ok=True)
        write_container(stored, FORMAT, VERSION, {"reactions": rows}, {})
    return reactions


def _stored(name: Any, stoichiometry: Any, lower_bound: Any, upper_bound: Any, gene_rule: Any, growth: Any) -> Reaction:
    """A row of the cache; an unexpected one is treated as missing."""
    if not all(type(text) is str for text in (name, gene_rule)) or type(growth) is not bool:
        raise TypeError("a reaction of other types")
    amounts = {metabolite: float(amount) for metabolite, amount in stoichiometry.items()}
    return Reaction(name, amounts, float(lower_bound), float(upper_bound), gene_rule, growth)


def _bytes(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        if data.startswith(b"\x1f\x8b"):
            with gzip.open(path) as unpacked:
                data = unpacked.read(_MOST_BYTES + 1)
        elif data.startswith(b"\xfd7zXZ\x00"):
            with lzma.open(path) as unpacked:
                data = unpacked.read(_MOST_BYTES + 1)
    except FileNotFoundError as error:
        raise FileFormatError(f"cannot read {path}: there is no such file") from error
    except (OSError, EOFError, lzma.LZMAError, gzip.zlib.error) as error:  # type: ignore[attr-defined]
        raise FileFormatError(f"{path} is damaged or incomplete ({error}); get the file again") from error
    if len(data) > _MOST_BYTES:
        raise FileFormatError(
            f"{path} has more than {_MOST_BYTES >> 20:,} MB, far more than a metabolic model; get the file again"
        )
    return data


def _cobra_model(path: Path, data: bytes) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # cobra's dependencies warn about each other
        try:
            import cobra.io
        except ImportError as error:
            raise KnockgraphError(
                "metabolic models are read with cobra, which is not installed; pip install 'knockgraph[yeast]', or "
                "leave metabolism out with --no-metabolism"
            ) from error
        import logging

        logging.getLogger("cobra").setLevel(logging.CRITICAL)  # what matters is raised
        sbml = data.lstrip()[:5].startswith(b"<")
        if sbml and b"<!ENTITY" in data.replace(b"\0", b""):  # in UTF-16, too
            raise FileFormatError(
                f"{path} defines XML entities, which can stand for other files or for gigabytes and which SBML does "
                "not need; get the file again from its owner"
            )
        try:
            if not sbml:
                return cobra.io.load_yaml_model(io.StringIO(data.decode("utf-8")))
            with tempfile.TemporaryDirectory() as folder:  # libsbml wants a file of its own
                plain = Path(folder) / "model.xml"
                plain.write_bytes(data)
                return cobra.io.read_sbml_model(str(plain))
        except Exception as error:  # cobra, ruamel and libsbml each have their own
            what = "SBML" if sbml else "YAML"
            detail = " ".join(str(error).split())[:300]
            raise FileFormatError(f"{path} is not a metabolic model in {what} that cobra can read: {detail}") from error


def _reactions(model: Any) -> Iterator[Reaction]:
    biomass = {m.id for m in model.metabolites if (m.name or "").strip().lower() == "biomass"}
    grouped = {m.id for g in getattr(model, "groups", ()) if (g.name or "").strip() == "Growth" for m in g.members}
    for r in model.reactions:
        subsystem = [r.subsystem] if isinstance(r.subsystem, str) else list(r.subsystem or ())
        stoichiometry = {m.id: float(c) for m, c in r.metabolites.items()}
        growth = "Growth" in subsystem or r.id in grouped or not biomass.isdisjoint(stoichiometry)
        yield Reaction(
            r.id, stoichiometry, float(r.lower_bound), float(r.upper_bound), r.gene_reaction_rule or "", growth
        )
