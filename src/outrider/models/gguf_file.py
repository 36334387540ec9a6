"""Reads a GGUF file's header and tensors, checking every extent before it is used.

The layout is the GGUF specification, versions 2 and 3, little-endian: header, metadata pairs, tensor
descriptions, then tensor data aligned to ``general.alignment``. Values of a block-quantised tensor are
unpacked by the ``gguf`` package. Its own reader builds one array per vocabulary entry, which takes seconds
for a 49k vocabulary; this one walks over strings without keeping them unless asked.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from outrider.errors import ModelError
from outrider.models.quiet import first_line

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy as np
    import torch
    from numpy.typing import NDArray

Scalar = int | float | bool | str
PackedKind = Literal["Q8_0", "Q4_0", "Q4_1"]
"""Quantisations that the native kernels multiply with as they are stored."""

_MAGIC = b"GGUF"
_STRING, _ARRAY = 8, 9
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_MAX_DIMENSIONS = 4
# Values unpacked at once. They stay in cache, and torch converts so few on one thread: on a busy machine, threads
# waiting for each other made reading a model four times slower.
_CHUNK_VALUES = 1 << 15


@dataclass(frozen=True)
class TensorInfo:
    """Where one tensor lies. ``shape`` is in torch order (rows first); ``start`` and ``nbytes`` in the file."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    start: int
    nbytes: int


@dataclass(frozen=True)
class GGUFFile:
    """A checked header: single metadata values, array lengths, and tensors by name."""

    path: Path
    metadata: Mapping[str, Scalar]
    arrays: Mapping[str, int]
    """Lengths of metadata arrays; their contents are not kept."""
    tensors: Mapping[str, TensorInfo]
    data_start: int
    """First byte after the header."""

    def read(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """One tensor, unpacked to ``dtype``. Raises ``ModelError`` for a quantisation that cannot be read."""
        info = self.tensors[name]
        try:
            return _unpack(self._rows(info), info.type_id, dtype).reshape(info.shape)
        except NotImplementedError as error:
            raise ModelError(
                f"{self.path}: tensor {name!r} is stored as {_kind(info)}, which cannot be read"
            ) from error

    def read_packed(self, name: str) -> PackedRows | None:
        """One matrix as it is stored; None for any other tensor, or blocks that are of no ``PackedKind``."""
        import numpy as np
        import torch

        info = self.tensors[name]
        kind = {known: known for known in get_args(PackedKind)}.get(_kind(info))
        if kind is None or len(info.shape) != 2:
            return None
        return PackedRows(kind, torch.from_numpy(np.array(self._rows(info))), info.shape[1])

    def _rows(self, info: TensorInfo) -> NDArray[np.uint8]:
        import numpy as np

        rows = math.prod(info.shape[:-1])
        return np.memmap(self.path, np.uint8, "r", info.start, (rows, info.nbytes // rows))


@dataclass(frozen=True)
class PackedRows:
    """A matrix in the blocks of a GGUF file: ``blocks`` is uint8, ``(rows, bytes of a row)``."""

    kind: PackedKind
    blocks: torch.Tensor
    columns: int

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the values."""
        return self.blocks.shape[0], self.columns

    def dense(self, dtype: torch.dtype) -> torch.Tensor:
        """The values in ``dtype``."""
        from gguf.constants import GGMLQuantizationType

        return _unpack(self.blocks.numpy(), GGMLQuantizationType[self.kind].value, dtype)


def _unpack(packed: NDArray[np.uint8], type_id: int, dtype: torch.dtype) -> torch.Tensor:
    """Values ``(rows, columns)`` of packed rows. NotImplementedError for a quantisation that ``gguf`` cannot undo."""
    import torch
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
    from gguf.quants import dequantize

    kind = GGMLQuantizationType(type_id)
    rows, row_bytes = packed.shape
    block, block_bytes = GGML_QUANT_SIZES[kind]
    width = row_bytes // block_bytes * block
    out = torch.empty(rows, width, dtype=dtype)
    step = max(1, _CHUNK_VALUES // width)
    for row in range(0, rows, step):
        values = dequantize(packed[row : row + step], kind)
        # float16 and float32 come back as views of the read-only map; torch wants memory it may write
        out[row : row + step] = torch.from_numpy(values if values.flags.writeable else values.copy())
    return out


def _kind(info: TensorInfo) -> str:
    from gguf.constants import GGMLQuantizationType

    return str(GGMLQuantizationType(info.type_id).name)


def open_gguf(path: Path) -> GGUFFile:
    """Parse and check a file's header. Raises ``ModelError`` naming the file and what is wrong with it."""
    try:
        with path.open("rb") as file:
            if file.read(4) != _MAGIC:
                raise ModelError(f"{path} is not a GGUF file: it does not start with {_MAGIC.decode()!r}")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _parse(path, data)
    except (struct.error, IndexError, OverflowError) as error:
        raise ModelError(f"{path} is truncated: its header runs past the end; fetch it again") from error
    except ModelError:
        raise
    except ValueError as error:
        raise ModelError(f"{path} is corrupt: {first_line(error)} in its header; fetch it again") from error
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from error


def _parse(path: Path, data: mmap.mmap) -> GGUFFile:
    cursor = _Cursor(path, data, position=4)
    version = cursor.number("I")
    if version not in (2, 3):
        raise ModelError(f"{path}: GGUF version {version} is not supported; versions 2 and 3 are (little-endian)")
    tensor_count, pair_count = cursor.number("Q"), cursor.number("Q")
    metadata: dict[str, Scalar] = {}
    arrays: dict[str, int] = {}
    for _ in range(int(pair_count)):
        key, kind = cursor.string(), int(cursor.number("I"))
        if kind == _ARRAY:
            arrays[key] = cursor.skip_array()
        else:
            metadata[key] = cursor.value(kind)
    described = [cursor.tensor() for _ in range(int(tensor_count))]
    if int(metadata.get("split.count", 1)) > 1:
        raise ModelError(f"{path} is one piece of a split model; merge the pieces with gguf-split and pass the result")
    alignment = int(metadata.get("general.alignment", 32))
    if alignment < 1:
        raise ModelError(f"{path} is corrupt: general.alignment is {alignment}")
    base = math.ceil(cursor.position / alignment) * alignment
    tensors = {tensor.name: _locate(path, len(data), base, tensor) for tensor in described}
    return GGUFFile(path, metadata, arrays, tensors, base)


def _locate(path: Path, size: int, base: int, tensor: _Description) -> TensorInfo:
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    name, shape = tensor.name, tensor.shape
    if tensor.type_id not in set(GGMLQuantizationType):
        raise ModelError(f"{path}: tensor {name!r} has storage type {tensor.type_id}, unknown here")
    block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(tensor.type_id)]
    if not shape or min(shape) < 1 or shape[-1] % block:
        raise ModelError(f"{path} is corrupt: tensor {name!r} has shape {shape}, not whole blocks of {block}")
    start, nbytes = base + tensor.offset, math.prod(shape) // block * block_bytes
    if start + nbytes > size:
        raise ModelError(
            f"{path} is truncated: tensor {name!r} ends at byte {start + nbytes:,}, the file at {size:,}; fetch again"
        )
    return TensorInfo(name, shape, tensor.type_id, start, nbytes)


@dataclass(frozen=True)
class _Description:
    """A tensor as the header describes it; ``offset`` counts from the end of the header."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int


@dataclass
class _Cursor:
    """A position moving through the header; reads past the end raise ``struct.error`` or ``IndexError``."""

    path: Path
    data: mmap.mmap
    position: int

    def number(self, code: str) -> int | float:
        layout = struct.Struct("<" + code)
        (value,) = layout.unpack_from(self.data, self.position)
        self.position += layout.size
        result: int | float = value
        return result

    def string(self) -> str:
        return self._advance(int(self.number("Q"))).decode()

    def value(self, kind: int) -> Scalar:
        if kind == _STRING:
            return self.string()
        return self.number(self._code(kind))

    def skip_array(self) -> int:
        kind, count = int(self.number("I")), int(self.number("Q"))
        if kind != _STRING:
            self._skip(count * struct.calcsize("<" + self._code(kind)))
            return count
        unpack, data, position = struct.Struct("<Q").unpack_from, self.data, self.position
        for _ in range(count):
            position += 8 + unpack(data, position)[0]
        self.position = position
        self._skip(0)
        return count

    def tensor(self) -> _Description:
        name, count = self.string(), int(self.number("I"))
        if count > _MAX_DIMENSIONS:
            raise ModelError(f"{self.path} is corrupt: tensor {name!r} has {count} dimensions, the limit is 4")
        shape = tuple(int(self.number("Q")) for _ in range(count))[::-1]
        return _Description(name, shape, int(self.number("I")), int(self.number("Q")))

    def _code(self, kind: int) -> str:
        if kind not in _NUMBERS:
            raise ModelError(f"{self.path} is corrupt: metadata value of unknown type {kind}")
        return _NUMBERS[kind]

    def _advance(self, count: int) -> bytes:
        start = self.position
        self._skip(count)
        return self.data[start : self.position]

    def _skip(self, count: int) -> None:
        self.position += count
        if self.position > len(self.data):
            raise IndexError(self.position)
