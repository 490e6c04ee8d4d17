"""Fitted translators: their reports, and the matrices to translate at home."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from anchorage_client._sync.jobs import submit
from anchorage_client._sync.transport import Json, Transport, segment
from anchorage_client.errors import reading
from anchorage_client.local import LocalTranslator
from anchorage_client.vectors import Float32s, VectorsLike


class Translator:
    """A fitted translator of the service."""

    def __init__(self, transport: Transport, data: Json) -> None:
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

    def download(self) -> LocalTranslator:
        """Return the matrices, which are downloaded once."""
        if self._local is None:
            answer = self._transport.send("GET", f"/translators/{segment(self.id)}/file")
            with reading("The file of the translator"):
                self._local = LocalTranslator.from_bytes(answer.content)
        return self._local

    def apply_locally(self, vectors: VectorsLike) -> Float32s:
        """Return the vectors translated in this process."""
        return (self.download()).apply(vectors).vectors

    def save_safetensors(self, path: str | Path) -> None:
        """Write the translator to a file that `LocalTranslator.load` reads."""
        (self.download()).save_safetensors(path)

    def save_onnx(self, path: str | Path) -> None:
        """Write the translator to an ONNX file. Needs the package onnx."""
        (self.download()).save_onnx(path)

    def threshold(self, source: float, *, scores: str | None = None) -> Json:
        """Return the threshold of the target that accepts as much as one of the source."""
        return self._transport.get(
            f"/translators/{segment(self.id)}/threshold", source=source, scores=scores
        )


class Translators:
    """The translators of the project."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def fit(
        self,
        *,
        source: str,
        target: str,
        anchor_set: str,
        fields: Json | None = None,
        as_job: bool = False,
    ) -> Any:
        """Fit a translator, or find it; `Client.translator` has its `fields` by name.

        Returns the `Translator`, or with `as_job` the job that makes it.
        """
        body = {"source": source, "target": target, "anchor_set": anchor_set, **(fields or {})}

        def finish(result: Json) -> Translator:
            return self.get(str(result["translator"]), index=body.get("index"))

        made = submit(self._transport, "POST", "/translators", body, finish, as_job=as_job)
        return made if as_job else Translator(self._transport, made)

    def get(self, id: str, *, index: int | None = None) -> Translator:
        """Return a translator, with its estimate for an index of this size."""
        answer = self._transport.get(f"/translators/{segment(id)}", index=index)
        return Translator(self._transport, answer)
