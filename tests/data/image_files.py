"""Encoded images and the files that they come in, for the tests of image sources."""

import io
import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

STRUCT = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def encoded(image: np.ndarray | Image.Image, kind: str = "PNG", **how: Any) -> bytes:
    """A file with the image; an array is grey ``[h, w]`` or coloured ``[h, w, 3]``."""
    file = io.BytesIO()
    (Image.fromarray(image) if isinstance(image, np.ndarray) else image).save(file, kind, **how)
    return file.getvalue()


def write_table(
    path: Path,
    images: Sequence[bytes | None],
    names: dict[str, list[str]] | None = None,
    image: str = "image",
    **columns: Any,
) -> None:
    """A parquet file in the hub's schema; ``names`` of class labels go to the metadata, as ``datasets`` writes them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({image: pa.array([{"bytes": d, "path": None} for d in images], type=STRUCT), **columns})
    features: dict[str, Any] = {image: {"_type": "Image"}}
    for column in columns:
        kind = table.schema.field(column).type
        features[column] = {"dtype": str(kind), "_type": "Value"}
    features |= {c: {"names": given, "_type": "ClassLabel"} for c, given in (names or {}).items()}
    meta = json.dumps({"info": {"features": features}}).encode()
    pq.write_table(table.replace_schema_metadata({b"huggingface": meta}), path)


def write_idx(path: Path, values: np.ndarray) -> None:
    """An IDX file of bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
    path.write_bytes(head + values.astype(np.uint8).tobytes())


def write_tree(folder: Path, files: dict[str, bytes | np.ndarray]) -> Path:
    """Files by their path below the folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(content) if isinstance(content, np.ndarray) else content)
    return folder
