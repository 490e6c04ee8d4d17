"""A downloaded translator, which multiplies at home."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchorage_client.vectors import Float32s, VectorsLike, as_array

#: roundings of float32 within which a length counts as zero, as in the service
NOISE = 8 * float(np.finfo(np.float32).eps)

#: rows of one step, whose intermediate results stay in the processor's cache
STEP_ROWS = 512

#: lengths whose squares are exact enough in float32
PLAIN_LENGTHS = (1e-12, 1e12)


def _lengths(rows: Any) -> NDArray[np.float64]:
    """Return the length of each row, also of those whose squares float32 cannot hold."""
    with np.errstate(over="ignore"):
        lengths: NDArray[np.float64] = np.sqrt(np.square(rows).sum(axis=1)).astype(np.float64)
    least, most = PLAIN_LENGTHS
    wide = ~((lengths > least) & (lengths < most))
    if wide.any():
        lengths[wide] = np.linalg.norm(rows[wide].astype(np.float64), axis=1)
    return lengths


def _tensor(entry: dict[str, Any], data: memoryview) -> Float32s:
    """Return a tensor of a safetensors file. Raises ValueError, KeyError, TypeError."""
    start, stop = entry["data_offsets"]
    if entry["dtype"] != "F32":
        raise ValueError(f"A tensor is {entry['dtype']}, not F32.")
    return np.frombuffer(data[start:stop], "<f4").reshape(entry["shape"])


@dataclass(frozen=True)
class LocalTranslation:
    """Translated vectors (n, d_y), and which rows have no direction.

    at_mean  (n,) equal the source's mean, and became the target's mean
    outside  (n,) lie outside the span of the anchors, and became the target's mean
    """

    vectors: Float32s
    at_mean: NDArray[np.bool_]
    outside: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class LocalTranslator:
    """The matrices of a translator.

    With n(x) = (x - m_x) / |x - m_x|, a translation is s r(p) + m_y: p = n(x) T, and
    p = (exp(n(x) L^T) - 1) B for a kernel; r scales to unit length if `renormalise`. With
    `kept_scale`, the result is |x - m_x| / kept_scale times as far from m_y.

    source_mean  (d_x,) m_x
    matrix       (d_x, d_y) T, or (k, d_y) B
    target_mean  (d_y,) m_y
    landmarks    (d_x, k) L^T of a kernel, otherwise None
    about        the service's names: id, source, target, anchor_set, method
    """

    source_mean: Float32s
    matrix: Float32s
    target_mean: Float32s
    landmarks: Float32s | None
    scale: float
    renormalise: bool
    kept_scale: float | None
    about: dict[str, Any]

    @property
    def dims(self) -> tuple[int, int]:
        """The dimensions of the source's and of the target's vectors."""
        return len(self.source_mean), len(self.target_mean)

    @classmethod
    def from_bytes(cls, data: bytes) -> LocalTranslator:
        """Read a safetensors file of the service. Raises ValueError for another file."""
        size = int.from_bytes(data[:8], "little")
        try:
            header: dict[str, Any] = json.loads(data[8 : 8 + size])
            about = json.loads(header.pop("__metadata__")["anchorage"])
            numbers = memoryview(data)[8 + size :]
            tensors = {name: _tensor(entry, numbers) for name, entry in header.items()}
            about.pop("kernel")  # as `landmarks` says
            return cls(
                tensors["source_mean"],
                tensors["matrix"],
                tensors["target_mean"],
                tensors.get("landmarks"),
                scale=about.pop("scale"),
                renormalise=about.pop("renormalise"),
                kept_scale=about.pop("kept_scale"),
                about=about,
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            raise ValueError("The file is not a translator of Anchorage, or is cut off.") from None

    @classmethod
    def load(cls, path: str | Path) -> LocalTranslator:
        """Read a file that `save_safetensors` wrote."""
        return cls.from_bytes(Path(path).read_bytes())

    def apply(self, vectors: VectorsLike) -> LocalTranslation:
        """Translate vectors (n, d_x).

        Raises ValueError for a wrong shape, NaN, infinity, and what float32 cannot hold.
        """
        rows = as_array(vectors)
        if rows.shape[1] != self.dims[0]:
            raise ValueError(
                f"The translator reads vectors of {self.dims[0]} numbers, and these have "
                f"{rows.shape[1]}."
            )
        wrong = np.flatnonzero(~np.isfinite(rows).all(axis=1))
        if len(wrong):
            raise ValueError(
                f"NaN or infinity in {len(wrong)} rows, the first {wrong[:10].tolist()}."
            )
        out = np.empty((len(rows), self.dims[1]), np.float32)
        at_mean, outside = np.zeros(len(rows), np.bool_), np.zeros(len(rows), np.bool_)
        for start in range(0, len(rows), STEP_ROWS):
            step = slice(start, start + STEP_ROWS)
            out[step], at_mean[step], outside[step] = self._step(rows[step], start)
        return LocalTranslation(out, at_mean, outside)

    def _step(self, rows: Any, start: int) -> tuple[Any, Any, Any]:
        with np.errstate(over="ignore"):
            centred = rows.astype(np.float32) - self.source_mean
        wide = start + np.flatnonzero(~np.isfinite(centred).all(axis=1))
        if len(wide):
            raise ValueError(
                f"Numbers outside the range of float32, or too near its end, in row {wide[0]}."
            )
        norms = _lengths(centred)
        norms[norms <= NOISE * _lengths(self.source_mean[None])] = 0.0
        at_mean = norms == 0.0
        safe = np.where(at_mean, 1.0, norms)
        unit = (centred / safe[:, None]).astype(np.float32)
        unit[at_mean] = 0.0
        energies = self.energies
        # The rounding of x - m, relative to m, adds to that of n(x).
        carried = (np.square(self.source_mean, dtype=np.float64) @ energies[0]) / safe**2
        noise = NOISE * np.sqrt(np.square(unit) @ energies[0].astype(np.float32) + carried)
        if self.landmarks is None:
            product = unit @ self.matrix
        else:
            product = unit @ self.landmarks
            product[_lengths(product) <= noise] = 0.0
            features = np.expm1(product, out=product)
            noise = NOISE * np.sqrt(np.square(features) @ energies[1].astype(np.float32))
            product = features @ self.matrix
        lengths = _lengths(product)
        known = lengths > noise
        factor = np.where(known, self.scale, 0.0)
        if self.renormalise:
            factor /= np.where(known, lengths, 1.0)
        if self.kept_scale is not None:
            factor *= norms / self.kept_scale
        with np.errstate(over="ignore", invalid="ignore"):
            product *= factor[:, None].astype(np.float32)
            product += self.target_mean
        if not np.isfinite(product).all():
            raise ValueError("Vectors are too far from the mean to keep their norm in float32.")
        return product, at_mean, ~known & ~at_mean

    @cached_property
    def energies(self) -> list[NDArray[np.float64]]:
        """The squared length of each row of the matrices, in the order of their use."""
        used = [self.matrix] if self.landmarks is None else [self.landmarks, self.matrix]
        return [np.square(each, dtype=np.float64).sum(axis=1) for each in used]

    def to_bytes(self) -> bytes:
        """Return the translator as a safetensors file."""
        tensors = {
            "source_mean": self.source_mean,
            "matrix": self.matrix,
            "target_mean": self.target_mean,
            **({} if self.landmarks is None else {"landmarks": self.landmarks}),
        }
        about = {
            **self.about,
            "scale": self.scale,
            "renormalise": self.renormalise,
            "kernel": self.landmarks is not None,
            "kept_scale": self.kept_scale,
        }
        header: dict[str, Any] = {"__metadata__": {"anchorage": json.dumps(about)}}
        data, place = [], 0
        for name, tensor in tensors.items():
            numbers = np.ascontiguousarray(tensor, "<f4").tobytes()
            header[name] = {
                "dtype": "F32",
                "shape": list(tensor.shape),
                "data_offsets": [place, place + len(numbers)],
            }
            data.append(numbers)
            place += len(numbers)
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)  # the format aligns its tensors
        return len(text).to_bytes(8, "little") + text + b"".join(data)

    def save_safetensors(self, path: str | Path) -> None:
        """Write the translator to a safetensors file."""
        Path(path).write_bytes(self.to_bytes())

    def save_onnx(self, path: str | Path) -> None:
        """Write the translator to an ONNX file: `vectors` (n, d_x) in, `translated` (n, d_y) out.

        The graph does not refuse NaN, and flags nothing: rows at the mean and rows outside the span
        of the anchors become the target's mean. Needs the package onnx.
        """
        from anchorage_client.onnx_export import save_onnx

        save_onnx(self, path)
