"""Where large translations run: on the GPU of this process, or on that of a model host."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from app.encoders.hosting.client import ModelHosts
from app.encoders.hosting.messages import Reply, pack_vectors, unpack_vectors
from app.encoders.pool import EncoderPool
from app.errors import EncoderFailed, ModelsUnavailable, blaming
from app.maths.translators.translator import RowFlags, Translator
from app.services.context import DeviceAway
from app.services.lanes import Lanes
from app.services.serving.placed_translator import FEWEST_MULTIPLICATIONS, PlacedTranslator
from app.services.upkeep.cache_codecs import TRANSLATOR
from app.storage.cache import MemoryCache, pack, unpack

#: memory for translators on one device
PLACED_BYTES = 2**30

#: threads that wait for a device, so that a device that hangs delays no other product
DEVICE_LANES = 4

#: silence of a model host after which the CPU translates
HOST_SILENCE_S = 1.0

#: fewest multiplications for each number that travels to a model host and back: fewer take the CPU
#: as long as sending the numbers (`python -m benchmarks.hops`)
FEWEST_MULTIPLICATIONS_PER_NUMBER = 256

#: most bytes of the vectors of one message, there or back: they arrive within HOST_SILENCE_S on a
#: network of a gigabit
MOST_PIECE_BYTES = 2**24

#: dtypes whose numbers float32 holds
NARROW_DTYPES = (torch.float32, torch.float16, torch.bfloat16)

#: what a host answers when it has to be sent the translator
UNKNOWN_TRANSLATOR = "unknown-translator"


class PlacedTranslators:
    """Translators in the memory of one device; the least recently used leave it first."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._cache = MemoryCache(PLACED_BYTES)

    def find(self, id: str) -> PlacedTranslator | None:
        """Return the translator with this id, or None."""
        found: PlacedTranslator | None = self._cache.find(id)
        return found

    def place(self, id: str, translator: Translator) -> PlacedTranslator:
        """Return the translator, which is copied to the device when it is first used."""
        return self._cache.get_or_make(
            id,
            lambda: PlacedTranslator(translator, self.device),
            lambda _: translator.nbytes,
        )


class OwnDevice:
    """The GPU of this process, on which its models run too."""

    def __init__(self, pool: EncoderPool) -> None:
        self._pool = pool
        self._placed = PlacedTranslators(pool.device)
        self.lanes = Lanes(DEVICE_LANES, name="translations")

    def pays(self, translator: Translator, vectors: Tensor) -> bool:
        """Return whether the device translates these vectors faster than the CPU."""
        work = len(vectors) * translator.multiplications
        return work >= FEWEST_MULTIPLICATIONS and not self._pool.broken

    def translate(
        self, id: str, translator: Translator, vectors: Tensor, out: Tensor
    ) -> RowFlags | None:
        """As `PlacedTranslator.apply_into`. Raises DeviceAway when the device fails."""
        try:
            return self._placed.place(id, translator).apply_into(vectors, out)
        except RuntimeError as error:  # torch's, for a broken device and for too little memory
            self._pool.check_device(error)
            raise DeviceAway(f"the device {self._placed.device} failed: {error}") from error

    def close(self) -> None:
        self.lanes.close()


class HostDevice:
    """The GPUs of model hosts."""

    def __init__(self, hosts: ModelHosts) -> None:
        self._hosts = hosts
        self.lanes = Lanes(DEVICE_LANES, name="translations")

    def pays(self, translator: Translator, vectors: Tensor) -> bool:
        """Return whether sending these vectors to a GPU takes less than translating them here."""
        return (
            len(vectors) * translator.multiplications >= FEWEST_MULTIPLICATIONS
            and translator.multiplications
            >= FEWEST_MULTIPLICATIONS_PER_NUMBER * sum(translator.dims)
            and vectors.dtype in NARROW_DTYPES
            and self._hosts.may_be_accelerated
        )

    def translate(
        self, id: str, translator: Translator, vectors: Tensor, out: Tensor
    ) -> RowFlags | None:
        """As `PlacedTranslator.apply_into`. Raises DeviceAway when no host answers."""
        flagged: RowFlags | None = None
        step = max(1, MOST_PIECE_BYTES // (4 * max(translator.dims)))
        for start in range(0, len(vectors), step):
            rows = slice(start, start + step)
            with blaming(rows_from=start):
                flags = self._translate_piece(id, translator, vectors[rows], out[rows])
            if flags is not None:
                flagged = flagged or (
                    torch.zeros(len(vectors), dtype=torch.bool),
                    torch.zeros(len(vectors), dtype=torch.bool),
                )
                flagged[0][rows], flagged[1][rows] = flags
        return flagged

    def _translate_piece(
        self, id: str, translator: Translator, vectors: Tensor, out: Tensor
    ) -> RowFlags | None:
        shape, numbers = pack_vectors(vectors.float())
        request: dict[str, Any] = {"do": "translate", "id": id, **shape}
        try:
            header, payload = self._call(request, numbers)
            if header.get(UNKNOWN_TRANSLATOR):
                arrays = pack(id.encode(), TRANSLATOR.dump(translator))
                header, payload = self._call(
                    {**request, "translator_bytes": len(arrays)}, arrays + numbers
                )
        except (ModelsUnavailable, EncoderFailed) as error:
            raise DeviceAway(f"no model host translates: {error.detail}") from error
        out.copy_(unpack_vectors(header, payload[: 4 * out.numel()]))
        if len(payload) == 4 * out.numel():
            return None
        flags = torch.frombuffer(payload, dtype=torch.bool, offset=4 * out.numel())
        return flags[: len(out)], flags[len(out) :]

    def _call(self, request: dict[str, Any], payload: bytes) -> Reply:
        return self._hosts.call_accelerated(request, payload, silence_s=HOST_SILENCE_S)

    def close(self) -> None:
        self.lanes.close()
        self._hosts.close()


class TranslateOperation:
    """Translates vectors for other processes: the operation `translate` of a model host."""

    def __init__(self, device: str) -> None:
        self._placed = PlacedTranslators(device)
        if device != "cpu":
            torch.empty(1, device=device)  # the first use of a device takes seconds

    def __call__(self, header: dict[str, Any], payload: memoryview) -> tuple[dict[str, Any], bytes]:
        """Return the reply to `HostDevice.translate`. Raises NonFinite and OutOfRange."""
        id, size = header["id"], header.get("translator_bytes", 0)
        placed = self._placed.find(id)
        if placed is None:
            if not size:
                return {UNKNOWN_TRANSLATOR: True}, b""
            tensors = unpack(id.encode(), bytes(payload[:size]))
            placed = self._placed.place(id, TRANSLATOR.load(tensors))
        vectors = unpack_vectors(header, payload[size:])
        out = torch.empty(len(vectors), placed.translator.dims[1])
        flags = placed.apply_into(vectors, out)
        shape, numbers = pack_vectors(out)
        return shape, b"".join([numbers, *(each.numpy().tobytes() for each in flags or ())])
