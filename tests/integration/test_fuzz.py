"""Damaged bytes for every reader: what comes out is a result or one sentence that names the file, nothing else."""

import gzip
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from damaged_files import EDITS, PACKED, READERS, SEALED, Edit, damaged, packed, resealed
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from knockgraph import KnockgraphError
from knockgraph.train.config import compose
from knockgraph.train.plain_config import compose_plain
from knockgraph.train.schema import Config

GROWTH = 256  # MB that the process may take more than with the sound file
# A reader that hangs is a failure; the first examples also import things.
SETTINGS = {"deadline": 20_000, "suppress_health_check": list(HealthCheck)}
FAST = settings(max_examples=40, phases=[Phase.explicit, Phase.generate], **SETTINGS)
FULL = settings(max_examples=4000, **SETTINGS)

CASES = st.tuples(EDITS, st.sampled_from(PACKED), st.sampled_from(["before packing", "after packing", "resealed"]))


def peak() -> int:
    """Most memory that was taken since :func:`forget_peak`, MB."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) // 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


@pytest.fixture
def bounded_memory() -> Iterator[None]:
    """The peak of the whole test; a file of a few kilobytes has no use for more."""
    try:
        forget_peak()
        before = peak()
    except OSError:  # only Linux tells
        yield
        return
    yield
    assert peak() - before < GROWTH


def check(name: str, folder: Path, sound: bytes, case: tuple[list[Edit], str, str]) -> None:
    reader, (edits, how, when) = READERS[name], case
    how = how if reader.packs else "plain"
    if when == "resealed" and name in SEALED:
        data = resealed(sound, edits)
    elif when == "after packing":
        data = damaged(packed(sound, how, reader.member), edits)
    else:
        data = packed(damaged(sound, edits), how, reader.member)
    path = folder / reader.file
    path.write_bytes(data)
    try:
        reader.read(path)
    except KnockgraphError as error:
        said = str(error)
    else:
        return
    assert len(said.splitlines()) == 1
    assert said.isprintable()
    assert str(path.parent) in said


def sound_bytes(name: str, folder: Path) -> bytes:
    """Written, read, and what memory the reader needs anyway is taken."""
    reader = READERS[name]
    data = reader.write(folder / reader.file)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of libraries that are imported now
        reader.read(folder / reader.file)
    return reader.write(folder / reader.file) or data


# An unknown tag in YAML ends a generator of ruamel's, which says so when it is collected.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", READERS)
def test_damaged_files(name: str, tmp_path: Path, bounded_memory: None) -> None:
    sound = sound_bytes(name, tmp_path)
    FAST(given(CASES)(lambda case: check(name, tmp_path, sound, case)))()


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", READERS)
def test_many_damaged_files(name: str, tmp_path: Path, bounded_memory: None) -> None:
    sound = sound_bytes(name, tmp_path)
    FULL(given(CASES)(lambda case: check(name, tmp_path, sound, case)))()


# ── what unpacks to far more than it is ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("STRING", ""),
        ("STRING", "protein1 protein2 experimental\n"),
        ("table of experiments", ""),
        ("table of experiments", "genotype,fitness\n"),
    ],
)
def test_a_line_without_end_does_not_fill_the_memory(
    name: str, first: str, tmp_path: Path, bounded_memory: None
) -> None:
    reader = READERS[name]
    path = tmp_path / f"{reader.file}.gz"
    ten_megabytes = gzip.compress(b"x" * 10_000_000, 1)
    path.write_bytes(gzip.compress(first.encode()) + 60 * ten_megabytes)  # parts of a gzip file may follow each other
    with pytest.raises(KnockgraphError, match=r"it does not end within 67,108,864 bytes; is it text\?"):
        reader.read(path)


# ── overrides of the config ──────────────────────────────────────────────────────────────────────────────────────────

OVERRIDES = [
    *("trainer.max_steps=7", "model=dango", "optimizer.lr=1e-3", "trainer.accumulate={0:2}", "data.merge={s: [a*]}"),
    *("trainer.profile_window=[1,1,1]", "trainer.baselines=[mean]", "run_dir=null", "preset=reference", "seed=3"),
    *("optimizer.betas=[0.9,0.99]", "model.options.channels=8", "data.split.kind=random"),
]
WORDS = [
    *("[", "]", "{", "}", "=", "'", '"', "null", "${oc.env:HOME}", "${", "~", "+", "-", "@", ":", ".", ",", "\\", "\n"),
    *("\x00", "é", "1e999", "nan", "9" * 30, "true", "&a", "*a", "!!python/name:os.system", "???", "#", "\t", " "),
    *("[[1]]", "{a:{b:1}}", "%", "\ud800", "\x85", "\x1b[31m", "[" * 1100),
]
CHANGED_OVERRIDES = st.tuples(
    st.sampled_from(OVERRIDES),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 3), st.sampled_from(WORDS)), min_size=1, max_size=3),
)


def check_override(composed: Callable[[list[str]], Config], case: tuple[str, list[tuple[float, int, str]]]) -> None:
    word, edits = case
    for place, drop, piece in edits:
        at = int(place * len(word))
        word = word[:at] + piece + word[at + drop :]
    try:
        composed([word])
    except KnockgraphError as error:
        said = str(error)
    else:
        return
    assert said.isprintable()


@pytest.mark.parametrize("composed", [compose, compose_plain])
def test_damaged_overrides(composed: Callable[[list[str]], Config]) -> None:
    FAST(given(CHANGED_OVERRIDES)(lambda case: check_override(composed, case)))()


@pytest.mark.full
@pytest.mark.parametrize("composed", [compose, compose_plain])
def test_many_damaged_overrides(composed: Callable[[list[str]], Config]) -> None:
    FULL(given(CHANGED_OVERRIDES)(lambda case: check_override(composed, case)))()
