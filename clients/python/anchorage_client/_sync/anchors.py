"""Anchor sets and pools: the items that encoders share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, overload

from anchorage_client._sync.jobs import Job, submit
from anchorage_client._sync.resources import Resource
from anchorage_client._sync.transport import Json, json_of, segment
from anchorage_client.errors import AnchorageError, rows_from
from anchorage_client.fields import MAX_JSON_BYTES, Role, row_parts, text_list
from anchorage_client.vectors import VectorsLike, as_array, to_json, to_npy

NPY = {"Content-Type": "application/x-npy"}


class AnchorSets(Resource):
    """Anchor sets: the same items, embedded by several encoders."""

    path, member = "/anchor-sets", "anchor_sets"
    compared = ("encoders",)

    @overload
    def create(
        self,
        name: str,
        *,
        embeddings: Mapping[str, VectorsLike] | None = None,
        inputs: Sequence[str] | None = None,
        encoders: Sequence[str] | None = None,
        input_type: Role | None = None,
        keep_inputs: bool | None = None,
        as_job: Literal[False] = False,
    ) -> Json: ...

    @overload
    def create(
        self,
        name: str,
        *,
        embeddings: Mapping[str, VectorsLike] | None = None,
        inputs: Sequence[str] | None = None,
        encoders: Sequence[str] | None = None,
        input_type: Role | None = None,
        keep_inputs: bool | None = None,
        as_job: Literal[True],
    ) -> Job[Json]: ...

    def create(
        self,
        name: str,
        *,
        embeddings: Mapping[str, VectorsLike] | None = None,
        inputs: Sequence[str] | None = None,
        encoders: Sequence[str] | None = None,
        input_type: Role | None = None,
        keep_inputs: bool | None = None,
        as_job: bool = False,
    ) -> Json | Job[Json]:
        """Create a set from embeddings by encoder, from inputs that `encoders` encode, or both.

        Embeddings above 5 MiB without another field are sent one encoder at a time. A failure
        leaves no set behind. With `as_job`, a worker encodes the inputs.

        embeddings  arrays (n, d), one for each encoder; row i is the same item for all of them
        inputs      the items, which the set stores for encoders that are added later
        """
        body: Json = {
            "name": name,
            "inputs": text_list(inputs),
            "encoders": text_list(encoders, "encoders"),
            "input_type": input_type,
            "keep_inputs": keep_inputs,
        }
        _require_inputs(inputs, as_job)
        arrays = {encoder: as_array(rows) for encoder, rows in (embeddings or {}).items()}
        more = any(value is not None for field, value in body.items() if field != "name")
        if more or sum(each.nbytes for each in arrays.values()) <= MAX_JSON_BYTES:
            if embeddings is not None:
                body["embeddings"] = {encoder: to_json(rows) for encoder, rows in arrays.items()}
            return self._submit("POST", self.path, body, name, as_job)
        (first, rows), *others = arrays.items()
        answer = self._transport.send(
            "POST",
            self.path,
            params={"name": name, "encoder": first},
            content=to_npy(rows),
            headers=NPY,
            creates=True,
        )
        made = json_of(answer)
        try:
            for encoder, rows in others:
                made = self.put(name, encoder, rows)
        except BaseException as error:
            with suppress(AnchorageError):  # the caller needs the first error
                self.delete(name)
                error.add_note(f"The anchor set {name!r} was deleted again.")
            raise
        return made

    @overload
    def create_from_store(
        self,
        name: str,
        store: str,
        *,
        encoders: Sequence[str],
        size: int | None = None,
        as_job: Literal[False] = False,
    ) -> Json: ...

    @overload
    def create_from_store(
        self,
        name: str,
        store: str,
        *,
        encoders: Sequence[str],
        size: int | None = None,
        as_job: Literal[True],
    ) -> Job[Json]: ...

    def create_from_store(
        self,
        name: str,
        store: str,
        *,
        encoders: Sequence[str],
        size: int | None = None,
        as_job: bool = False,
    ) -> Json | Job[Json]:
        """Make a set of rows of a store, whose texts the encoders embed."""
        body: Json = {
            "name": name,
            "store": store,
            "encoders": text_list(encoders, "encoders"),
            "size": size,
        }
        return self._submit("POST", self.path, body, name, as_job)

    def _submit(
        self, method: str, path: str, body: Json, name: str, as_job: bool
    ) -> Json | Job[Json]:
        """Send a request that makes or changes the set `name`; return the set, or the job."""

        def finish(result: Json) -> Json:
            return self.get(name)

        made: Json | Job[Json] = submit(self._transport, method, path, body, finish, as_job=as_job)
        return made

    def create_from_table(self, name: str, table: Any) -> Json:
        """Create a set from a `pyarrow.Table`.

        Columns of float lists have the names of their encoders. A text column `input` is optional.
        """
        inputs = table["input"].to_pylist() if "input" in table.column_names else None
        vectors = {each: table[each] for each in table.column_names if each != "input"}
        made: Json = self.create(name, embeddings=vectors or None, inputs=inputs)
        return made

    def create_from_parquet(self, name: str, path: str | Path) -> Json:
        """Create a set from a Parquet file with the columns of `create_from_table`."""
        from pyarrow import parquet

        return self.create_from_table(name, parquet.read_table(path))

    @overload
    def put(
        self,
        name: str,
        encoder: str,
        vectors: VectorsLike | None = None,
        *,
        inputs: Sequence[str] | None = None,
        input_type: Role | None = None,
        as_job: Literal[False] = False,
    ) -> Json: ...

    @overload
    def put(
        self,
        name: str,
        encoder: str,
        vectors: VectorsLike | None = None,
        *,
        inputs: Sequence[str] | None = None,
        input_type: Role | None = None,
        as_job: Literal[True],
    ) -> Job[Json]: ...

    def put(
        self,
        name: str,
        encoder: str,
        vectors: VectorsLike | None = None,
        *,
        inputs: Sequence[str] | None = None,
        input_type: Role | None = None,
        as_job: bool = False,
    ) -> Json | Job[Json]:
        """Add another encoder's embeddings of the set's items.

        Without vectors and inputs, the service encodes the inputs that the set stores. With
        `as_job`, a worker encodes them.
        """
        path = f"{self.path}/{segment(name)}/embeddings/{segment(encoder)}"
        if vectors is None:
            body = {"inputs": text_list(inputs), "input_type": input_type}
            return self._submit("PUT", path, body, name, as_job)
        _require_inputs(None, as_job)
        content = to_npy(vectors)
        sent = self._transport.send("PUT", path, content=content, headers=NPY, creates=True)
        return json_of(sent)

    def report(self, name: str) -> Json:
        """Return the set's health: findings, and whether the encoders' rows belong together."""
        return self._transport.get(f"{self.path}/{segment(name)}/report")

    def put_sample(
        self, name: str, encoder: str, vectors: VectorsLike, *, store_size: int | None = None
    ) -> Json:
        """Store a sample of an index, which reports compare the anchors with."""
        return self._transport.put(
            f"{self.path}/{segment(name)}/samples/{segment(encoder)}",
            {"vectors": to_json(vectors), "store_size": store_size},
        )


def _require_inputs(inputs: Sequence[str] | None, as_job: bool) -> None:
    if as_job and inputs is None:
        raise ValueError("`as_job` only applies to inputs: vectors are stored at once. Remove it.")


class Pools(Resource):
    """Pools: items of one encoder, for a bootstrap."""

    path, member = "/pools", "pools"
    compared = ("encoder",)

    def create(
        self,
        name: str,
        *,
        encoder: str,
        vectors: VectorsLike | None = None,
        inputs: Sequence[str] | None = None,
        input_type: Role | None = None,
    ) -> Json:
        """Create a pool of vectors or inputs; many take several requests.

        A failure leaves no pool behind.
        """
        made: Json | None = None
        try:
            for start, piece in row_parts(inputs, vectors=vectors):
                body = {**piece, "input_type": input_type}
                with rows_from(start):
                    if made is None:
                        path = f"{self.path}/{segment(name)}"
                        body["encoder"] = encoder
                        made = self._transport.put(path, body, creates=True)
                    else:
                        path = f"{self.path}/{segment(name)}/vectors"
                        body["offset"] = made["items"]
                        made = self._transport.post(path, body, creates=True)
        except BaseException:
            if made is not None:
                with suppress(AnchorageError):  # the caller needs the first error
                    self.delete(name)
            raise
        assert made is not None
        return made
