"""The client and the service's OpenAPI document name the same operations and fields."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from anchorage_client import Client
from anchorage_client._sync import anchors, resources, stores, translators
from app.main import create_app
from app.settings import Settings
from scripts.unasync import derived

CLIENT = Client("http://127.0.0.1:1")

#: the methods of operations whose names say another one: `list_encoders` is `client.encoders.list`
METHODS: dict[str, Callable[..., Any]] = {
    "create_embeddings": Client.embed,
    "put_name": resources.Names.create,
    "add_embeddings": anchors.AnchorSets.put,
    "put_sample": anchors.AnchorSets.put_sample,
    "extend_pool": anchors.Pools.create,
    "give_advice": Client.advice,
    "compare_encoders": Client.compare,
    "delete_native_vectors": stores.Stores.delete_native_vectors,
    "create_translator": Client.translator,
    "download_translator": translators.Translator.download,
    "get_threshold": translators.Translator.threshold,
    "plan_migration": stores.Migrations.create,
    "change_limits": stores.Migrations.update,
    "synchronise_store": stores.Migration.sync,
    "cut_over": stores.Migration.cutover,
    "roll_back": stores.Migration.rollback,
    "revoke_api_key": resources.ApiKeys.delete,
    "livez": Client.live,
    "readyz": Client.ready,
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
CLIENT_ONLY |= {"query_ids", "document_ids"}  # `evaluate` makes rows of them


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


def method_of(operation: str) -> Callable[..., Any]:
    """The client's method of an operation. Raises AttributeError without one."""
    if operation in METHODS:
        return METHODS[operation]
    verb, _, noun = operation.partition("_")
    for place in (noun, f"{noun}s", f"{noun}es"):
        if callable(found := getattr(getattr(CLIENT, place, None), verb, None)):
            return found  # type: ignore[no-any-return]
    place, name = (stores.Migration, verb) if noun == "migration" else (CLIENT, operation)
    return getattr(place, name)  # type: ignore[no-any-return]


def test_every_operation_has_a_method_and_every_method_here_an_operation(document):
    names = {name for name, _ in operations(document)}
    assert all(map(method_of, names))
    assert METHODS.keys() <= names


def test_the_synchronous_client_is_up_to_date():
    wrong = [path.name for path, text in derived().items() if path.read_text() != text]
    assert wrong == [], "run `python -m scripts.unasync`"


def test_the_parameters_of_a_method_are_the_fields_of_its_operation(document):
    missing, unknown = {}, {}
    for name, operation in operations(document):
        parameters = inspect.signature(method_of(name)).parameters
        wanted = fields(document, operation)
        known = wanted | {each["name"] for each in operation.get("parameters", ())}
        known |= {OTHER_NAMES[field] for field in known & OTHER_NAMES.keys()}
        if name != "extend_pool":  # `Pools.create` sends all pieces
            unknown[name] = parameters.keys() - CLIENT_ONLY - known
        if not any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
            missing[name] = {
                field
                for field in wanted - OWN_FIELDS.keys()
                if not {field, OTHER_NAMES.get(field)} & parameters.keys()
            }
    assert {name: each for name, each in missing.items() if each} == {}
    assert {name: each for name, each in unknown.items() if each} == {}
