"""Fitted translators: their reports, and the matrices to translate at home."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from anchorage_client._async.jobs import submit
from anchorage_client._async.transport import AsyncTransport, Json, segment
from anchorage_client.errors import reading
from anchorage_client.local import LocalTranslator
from anchorage_client.vectors import Float32s, VectorsLike


class AsyncTranslator:
    """A fitted translator of the service."""

    def __init__(self, transport: AsyncTransport, data: Json) -> None:
        self._transport = transport
        self._local: LocalTranslator | None = None
        #: the service's description and report
        self.data = data

    def __repr__(self) -> str:
        pair = f"{self.data['source']} to {self.data['target']}"
        return f"<{type(self).__name__} {self.id}: {self.method}, {pair}>"

    @property
    @reading("A translator")
    def id(self) -> str:
        """Id of the translator."""
        return str(self.data["id"])

    @property
    @reading("A translator")
    def method(self) -> str:
        """The method that fitted it."""
        return str(self.data["method"])

    @property
    @reading("A translator")
    def report(self) -> Json:
        """How good the translator is, measured on its anchors."""
        report: Json = self.data["report"]
        return report

    @property
    def quality(self) -> Json | None:
        """What the service estimates for the index; None with too few anchors."""
        estimate: Json | None = self.report.get("estimate")
        return estimate

    async def download(self) -> LocalTranslator:
        """Return the matrices, which are downloaded once."""
        if self._local is None:
            answer = await self._transport.send("GET", f"/translators/{segment(self.id)}/file")
            with reading("The file of the translator"):
                self._local = LocalTranslator.from_bytes(answer.content)
        return self._local

    async def apply_locally(self, vectors: VectorsLike) -> Float32s:
        """Return the vectors translated in this process."""
        return (await self.download()).apply(vectors).vectors

    async def save_safetensors(self, path: str | Path) -> None:
        """Write the translator to a file that `LocalTranslator.load` reads."""
        (await self.download()).save_safetensors(path)

    async def save_onnx(self, path: str | Path) -> None:
        """Write the translator to an ONNX file. Needs the package onnx."""
        (await self.download()).save_onnx(path)

    async def threshold(self, source: float, *, scores: str | None = None) -> Json:
        """Return the threshold of the target that accepts as much as one of the source."""
        return await self._transport.get(
            f"/translators/{segment(self.id)}/threshold", source=source, scores=scores
        )


class AsyncTranslators:
    """The translators of the project."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def fit(
        self,
        *,
        source: str,
        target: str,
        anchor_set: str,
        fields: Json | None = None,
        as_job: bool = False,
    ) -> Any:
        """Fit a translator, or find it; `AsyncClient.translator` has its `fields` by name.

        Returns the `AsyncTranslator`, or with `as_job` the job that makes it.
        """
        body = {"source": source, "target": target, "anchor_set": anchor_set, **(fields or {})}

        async def finish(result: Json) -> AsyncTranslator:
            return await self.get(str(result["translator"]), index=body.get("index"))

        made = await submit(self._transport, "POST", "/translators", body, finish, as_job=as_job)
        return made if as_job else AsyncTranslator(self._transport, made)

    async def get(self, id: str, *, index: int | None = None) -> AsyncTranslator:
        """Return a translator, with its estimate for an index of this size."""
        answer = await self._transport.get(f"/translators/{segment(id)}", index=index)
        return AsyncTranslator(self._transport, answer)
