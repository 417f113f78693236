"""What the stored strategies keep on disk: one LMDB record per genotype, fixed-width integers, no pickle.

Folder::

    data.mdb        LMDB: key = 16-byte BLAKE2b of the sorted gene indices (int32), value = the record
    manifest.json   written last: format, version, kind, direction, gene-list hash, edge hash, number of records, bytes

A folder without a manifest is an unfinished or foreign one and is refused. Every record starts with its length and ends
with an eight-byte BLAKE2b of its key and itself, so a damaged one, or one found under another's key, is noticed when it
is read, and a damaged length does not make the reader run past the end of the file.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import shutil
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from knockgraph.errors import FileFormatError, GeneListMismatchError, KnockgraphError, NotPreparedError, StrategyError
from knockgraph.files import atomic_write
from knockgraph.graph import CellGraph
from knockgraph.screen import BoundScreen, Genotypes, PerturbationBatch, Screen

if TYPE_CHECKING:
    from knockgraph.strategies.strategy import GenotypesLike

FORMAT = "knockgraph.mask-store"
VERSION = 1
_CHECK = 8
MARGIN = 2 * 2**16  #: bytes behind the records, see :meth:`MaskStore.write`
_COMMIT_EVERY = 64 * 2**20  # bytes per transaction: bounds the memory that a large preparation takes


class MaskStore:
    """Records by genotype. Opened lazily and separately in each process, so that it can be sent to worker processes.

    Args:
        graph: The cell graph.
        kind: Name of the strategy that the records belong to.
        direction: See :class:`Strategy`.
    """

    def __init__(self, graph: CellGraph, kind: str, direction: str) -> None:
        self.names = graph.genes
        self.num_genes = graph.num_genes
        h = hashlib.sha256()
        for name, relation in graph.relations.items():
            h.update(name.encode())
            h.update(relation.edge_index.numpy().tobytes())
        self.identity = {
            "format": FORMAT,
            "version": VERSION,
            "kind": kind,
            "direction": direction,
            "gene_list_hash": graph.gene_list_hash,
            "edges_hash": h.hexdigest(),
        }
        self.directory: Path | None = None
        # Part of every digest: a record of another graph or kind is refused, whatever the manifest says.
        self._seal = hashlib.blake2b(json.dumps(self.identity).encode(), digest_size=16).digest()
        self._opened: _Opened | None = None

    def write(
        self,
        genotypes: GenotypesLike,
        directory: str | os.PathLike[str],
        record: Callable[[npt.NDArray[np.int32]], bytes],
        record_bytes: int,
    ) -> None:
        """Write one record per distinct genotype, the manifest last.

        Args:
            genotypes: Whose records to write.
            directory: A new or empty folder, or one of an earlier preparation, which is replaced.
            record: Sorted gene indices → record.
            record_bytes: Typical size of a record, to tell the size of the whole before it is taken.
        """
        lmdb = _lmdb()
        folder = Path(directory)
        sets = self._sets(genotypes)
        needed = len(sets) * (record_bytes + 64)
        self._claim(folder, needed)
        # The map is only address space; the file grows as it is filled, and records may be larger than the typical one.
        map_size = max(2 * needed, min(shutil.disk_usage(folder).free, 2**40)) + 2**26
        try:
            with contextlib.closing(lmdb.open(str(folder), map_size=map_size, subdir=True, lock=False)) as environment:
                self._fill(environment, sets, record)
            with (folder / "data.mdb").open("ab") as file:
                # LMDB trusts the 16-bit offsets in its pages; a damaged one must not lead past the end of the file,
                # where the process would be killed before the damage is detected.
                file.write(bytes(MARGIN))
                file.flush()
                os.fsync(file.fileno())
        except (lmdb.Error, OSError) as error:
            (folder / "data.mdb").unlink(missing_ok=True)  # an incomplete store would only fill the disk
            raise KnockgraphError(
                f"cannot write the store in {folder}: {error}; free some disk space, or use node-mask, which stores "
                "nothing"
            ) from error
        with atomic_write(folder / "manifest.json") as part:
            size = (folder / "data.mdb").stat().st_size
            part.write_text(json.dumps({**self.identity, "records": len(sets), "bytes": size}, indent=1))
        self.use(folder)

    def _fill(
        self, environment: Any, sets: list[npt.NDArray[np.int32]], record: Callable[[npt.NDArray[np.int32]], bytes]
    ) -> None:
        pending = 0
        transaction = environment.begin(write=True)
        for genes in sets:
            value = record(genes)
            transaction.put(key := _key(genes), self._sealed(key, value))
            pending += len(value)
            if pending >= _COMMIT_EVERY:
                transaction.commit()
                transaction, pending = environment.begin(write=True), 0
        transaction.commit()
        environment.sync(True)

    def _claim(self, folder: Path, needed: int) -> None:
        """Make ``folder`` ready for writing, or refuse it."""
        if folder.exists() and not folder.is_dir():
            raise StrategyError(f"{folder} is a file; give a folder for the store")
        strangers = (
            [p.name for p in folder.iterdir() if p.name not in ("data.mdb", "lock.mdb", "manifest.json")]
            if (folder.is_dir())
            else []
        )
        if strangers:
            raise StrategyError(f"{folder} holds other files ({strangers[0]} …); give a new or empty folder")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise KnockgraphError(f"cannot create {folder}: {(error.strerror or str(error)).lower()}") from error
        free = shutil.disk_usage(folder).free
        if needed > free:
            raise StrategyError(
                f"the store needs about {needed / 1e9:,.1f} GB, but {folder} has {free / 1e9:,.1f} GB free; "
                "prepare fewer genotypes or use node-mask, which stores nothing"
            )
        _Opened.close(folder)
        for name in (
            "manifest.json",
            "data.mdb",
            "lock.mdb",
        ):  # the manifest first: an incomplete store must not look complete
            (folder / name).unlink(missing_ok=True)

    def use(self, directory: str | os.PathLike[str]) -> None:
        """Read from a folder that :meth:`write` completed, for this graph, strategy and direction."""
        folder = Path(directory)
        try:
            manifest = json.loads((folder / "manifest.json").read_text())
        except FileNotFoundError as error:
            raise NotPreparedError(
                f"{folder} holds no finished store (no manifest.json); call strategy.prepare(genotypes, directory)"
            ) from error
        except (ValueError, OSError, RecursionError) as error:
            raise FileFormatError(f"{folder}/manifest.json is damaged ({error}); prepare the store again") from error
        if not isinstance(manifest, dict):
            raise FileFormatError(f"{folder}/manifest.json is damaged (not an object); prepare the store again")
        for key, mine in self.identity.items():
            if manifest.get(key) != mine:
                if key in ("gene_list_hash", "edges_hash"):
                    raise GeneListMismatchError(
                        f"the store in {folder} was prepared for another cell graph ({key} differs); prepare it again"
                    )
                raise NotPreparedError(
                    f"the store in {folder} has {key}={manifest.get(key)!r}, but {mine!r} is needed; prepare it again"
                )
        data = folder / "data.mdb"
        if not data.is_file() or data.stat().st_size != manifest.get("bytes"):
            raise FileFormatError(f"{data} is missing or does not have the size in its manifest; prepare it again")
        self.directory = folder

    def close(self) -> None:
        """Let go of the folder; the next read opens it again."""
        self._opened = None
        if self.directory is not None:
            _Opened.close(self.directory)

    def read(self, batch: PerturbationBatch) -> list[bytes]:
        """The records of a batch on the host, one per column."""
        if self.directory is None:
            kind = self.identity["kind"]
            raise NotPreparedError(
                f"the {kind} strategy was not prepared; call strategy.prepare(genotypes, directory) first"
            )
        try:
            return self._records(batch)
        except (_lmdb().Error, OSError) as error:
            raise FileFormatError(f"the store in {self.directory} is damaged ({error}); prepare it again") from error

    def _records(self, batch: PerturbationBatch) -> list[bytes]:
        records = []
        with self._environment().begin(buffers=True) as transaction:
            for column, genes in enumerate(batch.tolist()):
                key = _key(np.array(sorted(genes), dtype=np.int32))
                found = transaction.get(key)
                if found is None:
                    raise NotPreparedError(
                        f"the store in {self.directory} has no record for sample {column} (deleted genes {genes}); "
                        "prepare it for these genotypes too"
                    )
                value = self._unsealed(key, found)
                if value is None:
                    raise FileFormatError(
                        f"the record of sample {column} (deleted genes {genes}) in {self.directory} is damaged; "
                        "prepare the store again"
                    )
                records.append(value)
        return records

    def _environment(self) -> Any:
        assert self.directory is not None
        self._opened = _Opened.get(self.directory)
        return self._opened.environment

    def _sealed(self, key: bytes, record: bytes) -> bytes:
        """The record with its length in front and its digest behind."""
        value = (len(record) + 2 * _CHECK).to_bytes(_CHECK, "little") + record
        return value + hashlib.blake2b(value, digest_size=_CHECK, key=key, person=self._seal).digest()

    def _unsealed(self, key: bytes, found: memoryview) -> bytes | None:
        """The record, or None if it is damaged. Only the length is touched until the length is known to be right."""
        if len(found) < 2 * _CHECK or int.from_bytes(found[:_CHECK], "little") != len(found):
            return None
        value = bytes(found)
        record = value[_CHECK:-_CHECK]
        return record if self._sealed(key, record) == value else None

    @property
    def nbytes(self) -> int:
        """Bytes on disk."""
        return 0 if self.directory is None else (self.directory / "data.mdb").stat().st_blocks * 512

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def _sets(self, genotypes: GenotypesLike) -> list[npt.NDArray[np.int32]]:
        """Distinct sets of deleted genes as sorted indices; the wild type is always among them.

        Genes with a value other than 0 keep their edges, so they have no part in what is stored.
        """
        if isinstance(genotypes, Screen):
            genotypes = genotypes.genotypes
        lists: Iterable[Any]
        if isinstance(genotypes, Genotypes):
            gene = self.names.index(genotypes.names).numpy()
            lists = _deleted(gene[genotypes.codes], genotypes.ptr, genotypes.values)
        elif isinstance(genotypes, BoundScreen):
            if genotypes.gene_list_hash != self.identity["gene_list_hash"]:
                raise GeneListMismatchError("this screen was bound to a different gene list; bind it to this graph")
            doses = None if genotypes.doses is None else genotypes.doses.cpu().numpy()
            lists = _deleted(genotypes.indices.cpu().numpy(), genotypes.host_ptr, doses)
        elif isinstance(genotypes, PerturbationBatch):
            known = (None, self.identity["gene_list_hash"])
            if genotypes.num_genes != self.num_genes or genotypes.gene_list_hash not in known:
                raise GeneListMismatchError(
                    "this batch was built for a different gene list; bind its screen to this graph"
                )
            lists = genotypes.deletions().tolist()
        else:
            lists = PerturbationBatch.from_lists(genotypes, self.num_genes).tolist()
        distinct = {(): np.empty(0, dtype=np.int32)}
        for genes in lists:
            ordered = np.unique(np.asarray(genes, dtype=np.int32))  # two names may mean one gene
            distinct[tuple(ordered.tolist())] = ordered
        return list(distinct.values())


class _Opened:
    """A folder opened for reading. LMDB allows one per process, so all strategies on a folder share it."""

    known: ClassVar[weakref.WeakValueDictionary[str, _Opened]] = weakref.WeakValueDictionary()

    def __init__(self, environment: Any, state: tuple[int, ...]) -> None:
        self.environment = environment
        self.state = state

    @classmethod
    def get(cls, folder: Path) -> _Opened:
        """The opened folder; opened anew in a forked process, and when the store was written again."""
        place = str(folder.resolve())
        found = (folder / "data.mdb").stat()
        state = (os.getpid(), found.st_ino, found.st_mtime_ns, found.st_size)
        opened = cls.known.get(place)
        if opened is None or opened.state != state:
            cls.close(folder)
            environment = _lmdb().open(place, readonly=True, lock=False, readahead=False, max_readers=1024, subdir=True)
            opened = cls.known[place] = cls(environment, state)
        return opened

    @classmethod
    def close(cls, folder: Path) -> None:
        """Close the folder if this process, or the one it was forked from, has it open."""
        opened = cls.known.pop(str(folder.resolve()), None)
        if opened is not None:
            opened.environment.close()


def _deleted(genes: npt.NDArray[Any], ptr: npt.NDArray[Any], values: npt.NDArray[Any] | None) -> Iterator[Any]:
    """The deleted genes of each row."""
    for a, b in itertools.pairwise(ptr.tolist()):
        yield genes[a:b] if values is None else genes[a:b][values[a:b] == 0]


def _key(genes: npt.NDArray[np.int32]) -> bytes:
    return hashlib.blake2b(genes.tobytes(), digest_size=16).digest()


def _lmdb() -> Any:
    try:
        import lmdb
    except ImportError as error:
        raise StrategyError("the stored strategies need LMDB: pip install 'knockgraph[stored]'") from error
    return lmdb
