"""The client and the service's OpenAPI document name the same operations and fields."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from anchorage_client import Client, Predictions, RelativeVectors, Translation
from anchorage_client._sync import anchors, measures, resources, stores, translators
from anchorage_client._sync.jobs import Job
from app.main import create_app
from app.settings import Settings

#: the method of each operation
METHODS: dict[str, Callable[..., Any]] = {
    "translate": Client.translate,
    "relative": Client.relative,
    "rescore": Client.rescore,
    "stitch": Client.stitch,
    "create_embeddings": Client.embed,
    "rerank": Client.rerank,
    "list_models": resources.Models.list,
    "get_model": resources.Models.get,
    "put_alias": resources.Aliases.create,
    "list_aliases": resources.Aliases.list,
    "get_alias": resources.Aliases.get,
    "delete_alias": resources.Aliases.delete,
    "create_head": resources.Heads.create,
    "list_heads": resources.Heads.list,
    "get_head": resources.Heads.get,
    "delete_head": resources.Heads.delete,
    "create_encoder": resources.Encoders.create,
    "list_encoders": resources.Encoders.list,
    "get_encoder": resources.Encoders.get,
    "delete_encoder": resources.Encoders.delete,
    "check_encoder": resources.Encoders.check,
    "create_anchor_set": anchors.AnchorSets.create,
    "list_anchor_sets": anchors.AnchorSets.list,
    "add_embeddings": anchors.AnchorSets.put,
    "get_anchor_set": anchors.AnchorSets.get,
    "delete_anchor_set": anchors.AnchorSets.delete,
    "put_sample": anchors.AnchorSets.put_sample,
    "delete_sample": anchors.AnchorSets.delete_sample,
    "report_anchor_set": anchors.AnchorSets.report,
    "get_pairs": anchors.AnchorSets.pairs,
    "create_pool": anchors.Pools.create,
    "extend_pool": anchors.Pools.create,
    "get_pool": anchors.Pools.get,
    "delete_pool": anchors.Pools.delete,
    "list_pools": anchors.Pools.list,
    "bootstrap": measures.Measures.bootstrap,
    "evaluate": measures.Measures.evaluate,
    "give_advice": measures.Measures.advice,
    "compare_encoders": measures.Measures.compare,
    "create_store": stores.Stores.create,
    "list_stores": stores.Stores.list,
    "get_store": stores.Stores.get,
    "delete_store": stores.Stores.delete,
    "search_store": stores.Stores.search,
    "delete_native_vectors": stores.Stores.delete_native_vectors,
    "create_translator": Client.translator,
    "list_translators": translators.Translators.list,
    "get_translator": translators.Translators.get,
    "download_translator": translators.Translator.download,
    "get_threshold": translators.Translator.threshold,
    "plan_migration": stores.Migrations.create,
    "list_migrations": stores.Migrations.list,
    "get_migration": stores.Migrations.get,
    "run_migration": stores.Migration.run,
    "verify_migration": stores.Migration.verify,
    "synchronise_store": stores.Migration.sync,
    "pause_migration": stores.Migration.pause,
    "cut_over": stores.Migration.cutover,
    "roll_back": stores.Migration.rollback,
    "finish_migration": stores.Migration.finish,
    "abandon_migration": stores.Migration.abandon,
    "list_jobs": resources.Jobs.list,
    "get_job": resources.Jobs.get,
    "cancel_job": resources.Jobs.cancel,
    "job_events": Job.events,
    "create_api_key": resources.ApiKeys.create,
    "list_api_keys": resources.ApiKeys.list,
    "get_api_key": resources.ApiKeys.get,
    "revoke_api_key": resources.ApiKeys.delete,
    "rotate_api_key": resources.ApiKeys.rotate,
    "list_writes": Client.audit,
    "livez": Client.live,
    "readyz": Client.ready,
    "metrics": Client.metrics,
}

#: fields that the client sets itself, each with the reason
OWN_FIELDS = {
    "encoding": "vectors travel as base64 or npy",
    "encoding_format": "vectors travel as base64",
    "embeddings": "the client sends `vectors` and `encoder` where that is smaller",
    "vectors": "of a set: `embeddings`",
    "encoder": "of a set: the keys of `embeddings`",
    "offset": "pools count their pieces",
    "migration": "the plan names its migration",
    "after": "lists read all pages",
    "before": "lists read all pages",
    "limit": "lists read all pages",
    "user": "the service ignores it",
    "return_documents": "the caller has the documents",
    "store": "`create_from_store` sends it",
    "size": "`create_from_store` sends it",
}

#: other names of fields, for readers of Python
OTHER_NAMES = {"input": "inputs", "input_type": "role", "model": "id"}

#: parameters that are not fields of the service
CLIENT_ONLY = {"self", "as_job", "progress", "fields", "total", "timeout"}

#: methods whose answers are dataclasses, with the members that have another place there
ANSWERS = {
    "translate": (Translation, {"count", "dim"}),
    "relative": (RelativeVectors, {"count", "dim"}),
    "stitch": (Predictions, set()),
}


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    app = create_app(Settings(data_dir=tmp_path_factory.mktemp("openapi")))
    return app.openapi()


def resolve(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    name = schema.get("$ref", "").rpartition("/")[2]
    return document["components"]["schemas"][name] if name else schema


def operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for methods in document["paths"].values():
        yield from ((each["operationId"], each) for each in methods.values())


def fields(document: dict[str, Any], operation: dict[str, Any]) -> set[str]:
    """The fields of an operation's JSON body, or of its query if it has no body."""
    body = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if body is not None:
        return set(resolve(document, body["schema"]).get("properties", {}))
    return {each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"}


def test_every_operation_has_a_method_and_every_method_an_operation(document):
    assert {name for name, _ in operations(document)} == METHODS.keys()


def test_every_field_of_an_operation_is_a_parameter(document):
    missing = {}
    for name, operation in operations(document):
        parameters = inspect.signature(METHODS[name]).parameters
        accepts_more = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
        lacking = {
            field
            for field in fields(document, operation) - OWN_FIELDS.keys()
            if field not in parameters and OTHER_NAMES.get(field) not in parameters
        }
        if lacking and not accepts_more:
            missing[name] = lacking
    assert missing == {}


def test_every_parameter_is_a_field_of_its_operation(document):
    unknown = {}
    for name, operation in operations(document):
        if name == "extend_pool":  # `Pools.create` sends all pieces
            continue
        known = fields(document, operation)
        known |= {each["name"] for each in operation.get("parameters", ())}
        known |= {OTHER_NAMES[field] for field in known & OTHER_NAMES.keys()}
        parameters = set(inspect.signature(METHODS[name]).parameters) - CLIENT_ONLY
        if extra := parameters - known:
            unknown[name] = extra
    assert unknown == {}


@pytest.mark.parametrize("name", ANSWERS)
def test_every_member_of_an_answer_with_vectors_is_kept(document, name):
    kind, elsewhere = ANSWERS[name]
    operation = dict(operations(document))[name]
    schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
    members = set(resolve(document, schema)["properties"])
    assert members - elsewhere == {field.name for field in dataclasses.fields(kind)}
