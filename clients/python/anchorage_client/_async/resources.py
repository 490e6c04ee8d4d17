"""Resources of the service: encoders, heads, jobs, names, models and API keys."""

from __future__ import annotations

import builtins
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from anchorage_client._async.jobs import AsyncJob
from anchorage_client._async.transport import AsyncTransport, Json, members_of, segment
from anchorage_client.errors import ConflictError, NotFoundError
from anchorage_client.fields import text_list
from anchorage_client.linear_layer import linear_layer
from anchorage_client.vectors import VectorsLike, to_json


class AsyncResource:
    """What resources with names have in common."""

    #: the path of the resource, and the member of its list
    path = ""
    member = ""
    #: fields that `get_or_create` compares
    compared: tuple[str, ...] = ()

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def list(self) -> builtins.list[Json]:
        """Return all of them, in the order of their names."""
        return await self._transport.pages(self.path, self.member, "after", "name")

    async def get(self, name: str) -> Json:
        """Return one."""
        return await self._transport.get(f"{self.path}/{segment(name)}")

    async def get_or_create(self, name: str, **fields: Any) -> Json:
        """Return the one of this name, or create it as `create` does; with `store`, an anchor set
        as `create_from_store` does. Raises ConflictError where a given field differs.
        """
        create: Any = self.create  # type: ignore[attr-defined]
        if "store" in fields:
            create = getattr(self, "create_from_store", create)
        try:
            return self._same(await self.get(name), fields)
        except NotFoundError:
            pass
        try:
            created: Json = await create(name, **fields)
        except ConflictError as error:
            if error.code not in ("name-taken", "conflict"):  # another client was quicker
                raise
            return self._same(await self.get(name), fields)
        return created

    def _same(self, found: Json, fields: Mapping[str, Any]) -> Json:
        """Return what was found. Raises ConflictError where a field is not as it was given."""
        for field in self.compared:
            given, is_now = fields.get(field), found.get(field)
            of_list = isinstance(is_now, builtins.list) and given and set(given) <= set(is_now)
            if given not in (None, is_now) and not of_list:
                detail = (
                    f"{found['name']!r} exists with `{field}` {is_now!r}, not {given!r}. Take "
                    "another name, leave the field out, or delete the old one first."
                )
                raise ConflictError(None, {"code": "differs", "detail": detail, "field": field})
        return found

    async def delete(self, name: str) -> None:
        """Delete one."""
        await self._transport.delete(f"{self.path}/{segment(name)}")


class AsyncEncoders(AsyncResource):
    """Encoders: named functions from inputs to vectors."""

    path, member = "/encoders", "encoders"
    compared = ("dim", "kind", "model", "revision", "modality")

    async def create(
        self,
        name: str,
        *,
        dim: int | None = None,
        kind: str | None = None,
        model: str | None = None,
        revision: str | None = None,
        modality: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Json:
        """Register an encoder. Without a kind it is `external`: you bring its vectors of `dim`."""
        body = {
            "name": name,
            "dim": dim,
            "kind": kind,
            "model": model,
            "revision": revision,
            "modality": modality,
            "options": None if options is None else dict(options),
        }
        return await self._transport.post("/encoders", body, creates=True)

    async def check(
        self,
        name: str,
        *,
        inputs: Sequence[str] | None = None,
        vectors: VectorsLike | None = None,
        input_type: str | None = None,
    ) -> Json:
        """Embed a few anchors again, and return whether the vectors have moved.

        inputs, vectors  vectors that you have of these inputs: return whether the encoder makes
                         them, and the likely cause of a difference
        """
        body = {
            "inputs": text_list(inputs),
            "vectors": None if vectors is None else to_json(vectors),
            "input_type": input_type,
        }
        return await self._transport.post(f"/encoders/{segment(name)}/check", body)


class AsyncHeads(AsyncResource):
    """Heads: classifiers and decoders that were trained in one space."""

    path, member = "/heads", "heads"
    compared = ("kind", "encoder", "anchor_set")

    async def create(
        self,
        name: str,
        *,
        kind: str | None = None,
        encoder: str | None = None,
        anchor_set: str | None = None,
        classes: Sequence[str | int] | None = None,
        output: Mapping[str, Any] | None = None,
        probabilities: bool | None = None,
        scale: float | None = None,
        encode_power: float | None = None,
        ridge: float | None = None,
        weight: VectorsLike | None = None,
        bias: Sequence[float] | None = None,
        architecture: Mapping[str, Any] | None = None,
        safetensors: bytes | None = None,
        file: str | None = None,
    ) -> Json:
        """Register a head: `weight` (classes, d) and `bias`, a safetensors file, or the name of an
        ONNX `file` that the server has.
        """
        body = {
            "name": name,
            "kind": kind,
            "encoder": encoder,
            "anchor_set": anchor_set,
            "classes": text_list(classes, "classes"),
            "output": output,
            "probabilities": probabilities,
            "scale": scale,
            "encode_power": encode_power,
            "ridge": ridge,
            "weight": None if weight is None else to_json(weight),
            "bias": None if bias is None else [float(each) for each in bias],
            "architecture": architecture,
            "safetensors": None if safetensors is None else b64encode(safetensors).decode(),
            "file": file,
        }
        return await self._transport.post("/heads", body, creates=True)

    async def from_sklearn(
        self,
        name: str,
        classifier: Any,
        *,
        encoder: str | None = None,
        anchor_set: str | None = None,
        scale: float | None = None,
        encode_power: float | None = None,
        ridge: float | None = None,
    ) -> Json:
        """Register a fitted classifier of scikit-learn, or a pipeline, as a linear head.

        The head predicts as the classifier does. Its weights are computed here, and the service
        unpickles nothing. Classes are texts or whole numbers; others become texts: .5 is "0.5".
        Raises TypeError for a classifier whose decision is not linear, such as one of neighbours
        or trees; `create` takes networks (`architecture`) and ONNX files (kind="onnx").

        encoder  the encoder whose vectors it was trained on; or an `anchor_set`, for relative ones
        scale    the norm of the training vectors, if all had one
        """
        layer = linear_layer(classifier)
        return await self.create(
            name,
            encoder=encoder,
            anchor_set=anchor_set,
            classes=layer.classes,
            scale=layer.scale if scale is None else scale,
            encode_power=encode_power,
            ridge=ridge,
            weight=layer.weight.astype(np.float32),
            bias=layer.bias.tolist(),
        )


class AsyncJobs:
    """Jobs of the project."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def list(self, *, state: str | None = None, limit: int = 100) -> builtins.list[Json]:
        """Return the newest jobs."""
        jobs: builtins.list[Json] = (await self._transport.get("/jobs", state=state, limit=limit))[
            "jobs"
        ]
        return jobs

    async def get(self, id: str) -> AsyncJob[Json]:
        """Return a job."""
        return AsyncJob(self._transport, await self._transport.get(f"/jobs/{segment(id)}"))

    async def cancel(self, id: str) -> AsyncJob[Json]:
        """Ask a job to stop at its next step."""
        return await (await self.get(id)).cancel()


class AsyncNames(AsyncResource):
    """Plain names for models such as `new->old@faq`, and for what a store needs."""

    path, member = "/names", "names"
    compared = ("model", "store")

    async def create(
        self, name: str, model: str | None = None, *, store: str | None = None
    ) -> Json:
        """Create a name; the same call again changes nothing. ConflictError if it is in use.

        store  it makes the vectors that the store's clients need: by the old encoder before a
               cutover, by the new one after it, by the old one again after a rollback
        """
        body = {"model": model, "store": store}
        return await self._transport.put(f"/names/{segment(name)}", body)


class AsyncModels:
    """Models of the OpenAI API: encoders, translated encoders and names."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def list(self) -> builtins.list[Json]:
        """Return the encoders that the service runs, and the names."""
        return members_of(await self._transport.get("/v1/models"), "data")

    async def get(self, id: str) -> Json:
        """Return one model."""
        return await self._transport.get(f"/v1/models/{segment(id)}")


class AsyncApiKeys:
    """API keys, for callers with the scope `admin`."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def create(
        self,
        name: str,
        *,
        scopes: Sequence[str] | None = None,
        expires_at: str | None = None,
    ) -> Json:
        """Create a key. Its secret is in this answer only."""
        body = {
            "name": name,
            "scopes": text_list(scopes, "scopes"),
            "expires_at": expires_at,
        }
        return await self._transport.post("/api-keys", body, creates=True)

    async def list(self) -> builtins.list[Json]:
        """Return all keys, without their secrets."""
        return members_of(await self._transport.get("/api-keys"), "api_keys")

    async def delete(self, id: str) -> None:
        """Revoke a key."""
        await self._transport.delete(f"/api-keys/{segment(id)}")
