"""Small files that look like public ones."""

import bz2
import gzip
import lzma
import zipfile
from pathlib import Path


def write(path: Path, text: str | bytes) -> Path:
    """The text, compressed as the file's name asks."""
    data = text.encode() if isinstance(text, str) else text
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(path.stem, data)
        return path
    pack = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}.get(path.suffix)
    path.write_bytes(pack(data) if pack else data)
    return path
