"""The maps of a migration: both directions, fixed for its whole life.

A migration can last for weeks. Rows that were translated by another map would not be comparable,
so the maps are stored as a blob when the plan is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from app.anchors.samples import SAMPLE_TENSOR
from app.anchors.spaces import raw_anchors
from app.context import RequestContext, Services
from app.db import resources, tables
from app.errors import Conflict, OutOfRange, StoreChanged
from app.maths.geometry.space import LARGEST_MAGNITUDE
from app.maths.quality.index_curves import UNEQUAL_LENGTHS
from app.maths.translators.translator import Translator, apply_into
from app.stores.port import StoreVectors
from app.translate import fit as translators
from app.translate import warnings
from app.translate.fit import TRANSLATOR
from app.translate.maps import FitRequest, ServedMap
from app.translate.placed_translator import PlacedTranslator
from app.translate.warnings import AnswerWarning

#: rows that are translated at a time; their scratch memory is a few vectors each
MAPPED_ROWS = 8192


@dataclass(frozen=True, eq=False)
class MappedPage:
    """Vectors (n, d) in the other space, float32, and what was special about rows.

    undirected (n,) rows that no map can translate: they are zero, not finite, beyond 2^100, at the
               mean of the anchors, or outside their span. Their vectors are zero
    """

    vectors: StoreVectors
    undirected: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class OneWayMap:
    """A translator of all rows, anchors too: native vectors among translated ones found no better
    documents, and many rows may share the vector of an anchor.

    length  that of all vectors of the target, which the rows get: a store that compares lengths
            finds as much as by cosines; 0: they have several
    device  where it multiplies what is enough to pay; everything else is computed on the CPU
    """

    translator: Translator
    length: float = 0.0
    device: str = "cpu"

    @cached_property
    def placed(self) -> PlacedTranslator:
        """The translator on the device, which large pieces use."""
        return PlacedTranslator(self.translator, self.device)

    def map_rows(self, vectors: StoreVectors) -> MappedPage:
        """Translate vectors (n, d) of the store. No vector stops it.

        Raises StoreChanged for another number of dimensions.
        """
        count, dims = len(vectors), self.translator.dims
        if vectors.shape[1] != dims[0]:
            raise StoreChanged(
                f"The store has vectors of {vectors.shape[1]} dimensions, and the migration was "
                f"planned for {dims[0]}. Undo the change and call `run` again, or abandon the "
                "migration if it is not cut over."
            )
        out = np.zeros((count, dims[1]), dtype=np.float32)
        undirected = np.zeros(count, dtype=np.bool_)
        for start in range(0, count, MAPPED_ROWS):
            rows = slice(start, min(start + MAPPED_ROWS, count))
            self._map_piece(
                _as_tensor(vectors[rows]),
                torch.from_numpy(out[rows]),
                torch.from_numpy(undirected[rows]),
            )
        if self.length:
            norms = np.linalg.norm(out, axis=1, keepdims=True)
            out *= np.divide(self.length, norms, out=np.zeros_like(norms), where=norms > 0)
        return MappedPage(out, undirected)

    def _map_piece(self, vectors: Tensor, out: Tensor, undirected: Tensor) -> None:
        largest = vectors.abs().amax(dim=1)
        undirected.copy_(~((largest > 0) & (largest <= LARGEST_MAGNITUDE)))  # true for NaN
        usable = (~undirected).nonzero().flatten()
        while len(usable):
            whole = len(usable) == len(vectors)
            part = vectors if whole else vectors[usable]
            made = out if whole else torch.empty(len(usable), out.shape[1])
            try:
                if self.placed.pays(len(part)):
                    flags = self.placed.apply_into(part, made)
                else:
                    flags = apply_into(self.translator, part, made)
            except OutOfRange as error:  # too far from the mean for `keep_norms`
                if not error.rows:
                    raise
                undirected[usable[error.rows]] = True
                usable = (~undirected).nonzero().flatten()
                continue
            if not whole:
                out[usable] = made
            if flags is not None:
                undirected[usable[flags[0] | flags[1]]] = True
            break
        out[undirected] = 0.0


@dataclass(frozen=True, eq=False)
class MigrationMaps:
    """The maps of one migration, float32 numpy in and out; several threads may use them."""

    forward: OneWayMap
    backward: OneWayMap


@dataclass(frozen=True, eq=False)
class BuiltMaps:
    """New maps: their blob, the spaces they join, and how the forward map was made."""

    digest: str
    maps: MigrationMaps
    source: tables.SpaceRow
    target: tables.SpaceRow
    served: ServedMap
    warnings: Sequence[AnswerWarning]


def build_maps(
    services: Services,
    context: RequestContext,
    request: FitRequest,
    *,
    sample: Tensor | None = None,
) -> BuiltMaps:
    """Fit the maps of both directions to the set's present anchors, and store them as one blob.

    sample  (n, d_source) vectors of the store. Where the set has no sample of it, the fits weigh
            anchors that are foreign to it less, as they would with one
    """
    source, target = _find_pair(services, context.project, request, sample)
    served = translators.fit(services, context, source, target, request)
    assert request.source is not None
    back = replace(request, source=request.target, target=request.source)
    backward = translators.fit(services, context, target, source, back)
    maps = MigrationMaps(
        OneWayMap(served.translator, _length_of(services, target)),
        OneWayMap(backward.translator, _length_of(services, source)),
    )
    return BuiltMaps(
        services.blobs.put(_dump(maps)),
        maps,
        source,
        target,
        served,
        warnings.warnings_about_pair(services, source, target),
    )


def _length_of(services: Services, space: tables.SpaceRow) -> float:
    """Return the length of all anchors; 0 where they have several."""
    lengths = raw_anchors(services, space).float().norm(dim=1)
    least, most = (each.item() for each in lengths.aminmax())
    return lengths.mean().item() if most <= UNEQUAL_LENGTHS * least else 0.0


def _find_pair(
    services: Services, project: str, request: FitRequest, sample: Tensor | None
) -> tuple[tables.SpaceRow, tables.SpaceRow]:
    """Return both spaces; the source's with the sample, unless one of them has a sample."""
    source, target = translators.find_pair(services, project, request)
    if sample is None or source.sample is not None or target.sample is not None:
        return source, target
    names = {source.encoder.name, target.encoder.name}
    digest = services.blobs.put({SAMPLE_TENSOR: sample})
    with services.db.transaction() as session:
        found = resources.spaces_of(session, project, request.anchor_set, names)
    if len(found) < len(names):
        raise Conflict(
            f"Anchor set {request.anchor_set!r} was replaced meanwhile. Try again.",
            field="anchor_set",
        )
    source, target = found[source.encoder.name], found[target.encoder.name]
    # These rows are only read here, and outside a session, which would write them.
    source.sample, source.sample_size = digest, len(sample)
    return source, target


def load_maps(services: Services, row: tables.MigrationRow) -> MigrationMaps | None:
    """Return the maps of a migration, from memory or its blob; None before it has anchors."""
    if (digest := row.maps) is None:
        return None
    return services.cache.get_or_make(
        ("migration maps", digest),
        lambda: _load(services.blobs.get(digest, of=f"migration {row.id}"), services.device),
        lambda maps: maps.forward.translator.nbytes + maps.backward.translator.nbytes,
    )


def _dump(maps: MigrationMaps) -> dict[str, Tensor]:
    parts = {
        "forward": TRANSLATOR.dump(maps.forward.translator),
        "backward": TRANSLATOR.dump(maps.backward.translator),
        "lengths": {"": torch.tensor([maps.forward.length, maps.backward.length])},
    }
    return {  # copies: both maps share tensors where the target is the model of the old vectors
        f"{part}/{name}": tensor.clone()
        for part, each in parts.items()
        for name, tensor in each.items()
    }


def _load(tensors: Mapping[str, Tensor], device: str) -> MigrationMaps:
    parts: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        part, _, name = key.partition("/")
        parts.setdefault(part, {})[name] = tensor
    lengths = parts.get("lengths", {"": torch.zeros(2)})[""].tolist()
    return MigrationMaps(
        OneWayMap(TRANSLATOR.load(parts["forward"]), lengths[0], device),
        OneWayMap(TRANSLATOR.load(parts["backward"]), lengths[1], device),
    )


def _as_tensor(vectors: StoreVectors) -> Tensor:
    """Return the vectors as a tensor, copied if their memory cannot be shared."""
    rows = np.ascontiguousarray(vectors, dtype=np.float32)
    return torch.from_numpy(rows if rows.flags.writeable else rows.copy())
