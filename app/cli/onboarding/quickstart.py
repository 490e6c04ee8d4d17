"""`anchorage quickstart`: five questions, then a working pair and a report."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.onboarding.names import check_name, encoder_names
from app.cli.output import AsJson, print_json
from app.cli.service import Refused, Service, at, uses_service
from app.cli.shared import TextField, VectorField, local_url, read_settings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from app.cli.onboarding.store_places import StorePlace

#: how a store is named where a file or folder could be
STORE_PREFIX = "store:"

#: rows of a set that are compared with those of another one
COMPARED_ROWS = 100

#: least cosine of a vector to its own anchor, which half precision rounds
SAME_COSINE = 0.999

#: of English, by most tokenizers
CHARACTERS_PER_TOKEN = 4


@uses_service
def quickstart(
    service: Service,
    address: Annotated[
        str | None,
        typer.Argument(
            help="Your store: postgresql://..., http://... (Qdrant, Milvus), a folder or file.",
            show_default=False,
        ),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(help="Its kind, as milvus; default: by the address.", show_default=False),
    ] = None,
    collection: Annotated[
        str | None,
        typer.Option(
            "--collection", "--table", help="Its table or collection.", show_default=False
        ),
    ] = None,
    text_field: TextField = None,
    vector_field: VectorField = None,
    store: Annotated[
        str | None,
        typer.Option(
            help="A name for the store at the address; default: its collection's.",
            show_default=False,
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            help="With an address, a name for the encoder of its vectors; default: COLLECTION-old. "
            "Else vectors of the old encoder: npy or Parquet, a file or a folder; or store:NAME, a "
            "connected store with texts.",
            show_default=False,
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="For a store, the new encoder: its name, or a model that sentence-transformers "
            "loads. Else the same items by the new encoder, in the same order.",
            show_default=False,
        ),
    ] = None,
    items: Annotated[
        int | None,
        typer.Option(min=1, help="Number of items in your index.", show_default=False),
    ] = None,
    old_encoder_runs: Annotated[
        bool | None,
        typer.Option(help="Whether the old encoder can still embed queries.", show_default=False),
    ] = None,
    texts_exist: Annotated[
        bool | None,
        typer.Option(help="Whether the items can be embedded again.", show_default=False),
    ] = None,
    anchor_set: Annotated[
        str | None,
        typer.Option(
            help="Name of the anchor set; default: the names of both encoders.", show_default=False
        ),
    ] = None,
    price: Annotated[
        float | None,
        typer.Option(
            min=0, help="What a million tokens cost with the new encoder.", show_default=False
        ),
    ] = None,
    report: Annotated[Path, typer.Option(help="File for the report in Markdown.")] = Path(
        "anchorage-report.md"
    ),
    as_json: AsJson = False,
) -> None:
    """Say what to do with an index whose model changes, and leave a search that works.

    With the address of a store it reads the store, takes anchors from it, and writes nothing to it.
    Without one it takes vectors from files, or a connected store, and asks for what no option says.
    An address works in a service that the command starts, or that lists it in ANCHORAGE_STORES.
    """
    place, needed = None, "--source, --target, --items"
    if address is not None:
        needed = "--target"
        place = _place(address, kind, collection, text_field, vector_field, source, store)
        source = f"{STORE_PREFIX}{place.name}"
    elif kind or collection or text_field or vector_field or store:
        raise typer.BadParameter(
            "--kind, --collection, --store and the fields describe the store at an address."
        )
    try:
        source, target, items, old_encoder_runs, texts_exist = _ask(
            source, target, items, old_encoder_runs, texts_exist, runs=place is None
        )
    except typer.Abort:
        raise typer.BadParameter(
            f"Standard input ended before all questions were answered. Pass {needed}, "
            "--old-encoder-runs or --no-old-encoder-runs, and --texts-exist or --no-texts-exist."
        ) from None
    from_store = source.startswith(STORE_PREFIX)
    encoders = (source, target) if from_store else encoder_names(Path(source), Path(target))
    if anchor_set is not None or not from_store:
        anchor_set = anchor_set or "-".join(encoders)
        check_name(anchor_set, f"--anchor-set: {anchor_set!r} is no name.")
    if not as_json and not report.absolute().parent.is_dir():
        raise typer.BadParameter(f"--report: there is no folder {report.absolute().parent}.")
    facts: dict[str, Any] = {"old_encoder_runs": old_encoder_runs, "text_exists": texts_exist}
    if from_store:
        answer = _advise_on_store(
            service, source.removeprefix(STORE_PREFIX), target, place, anchor_set, facts
        )
    else:
        files = dict(zip(encoders, (source, target), strict=True))
        anchors = _read(files)
        _say_where(service)
        _register(service, anchors)
        _make_set(service, str(anchor_set), anchors)
        answer = _advise(service, *encoders, str(anchor_set), corpus_size=items, **facts)
        answer["files"] = [source, target]
    answer |= {"price": price, "url": service.url or _usual_url()}
    if as_json:
        print_json(answer)
        return
    from app.cli.onboarding.report import as_markdown, print_report

    report.write_text(as_markdown(answer), encoding="utf-8")
    print_report(answer)
    typer.echo(f"\nThe report is in {report}.")


def _say_where(service: Service) -> None:
    service.get("/livez")  # it opens the service, whose start says where it is
    typer.echo(f"It writes to {service.home}, and to no store.", err=True)


def _usual_url() -> str:
    settings = read_settings()
    return local_url(f"http://{settings.host}:{settings.port}")


def _advise_on_store(
    service: Service,
    store: str,
    target: str,
    place: StorePlace | None,
    anchor_set: str | None,
    facts: dict[str, Any],
) -> dict[str, Any]:
    """Connect the store if need be, take anchors from it, and return the advice.

    Raises Refused and typer.BadParameter, after it has taken back what is new.
    """
    from app.cli.onboarding import store_places

    unlisted = False
    if place is not None:
        settings = read_settings()
        place = place.listed_in(settings.stores)
        unlisted = place.listed not in settings.stores
        service.own_settings = {"stores": place.added_to(settings.stores)}
    _say_where(service)
    take_back = None if place is None else place.connect(service)
    try:
        if place is not None:
            target = store_places.find_or_load(service, target)
        there = service.get(at("stores", store))
        name = anchor_set or (f"{there['encoder']}-{target}" if place is None else place.name)
        made = _take_anchors(service, store, there["encoder"], target, name)
    except (Refused, typer.BadParameter):
        if take_back is not None:
            take_back()
        raise
    if facts["old_encoder_runs"]:
        _compare(service, store, [there["encoder"], target])
    pair = (there["encoder"], target, name)
    answer = _advise(service, *pair, corpus_size=there["rows"], **facts)
    characters = (made["provenance"] or {}).get("mean_characters")
    if characters is not None:
        answer["tokens"] = round(characters / CHARACTERS_PER_TOKEN * there["rows"])
    answer["store"] = store
    answer["setting"] = place.setting() if place is not None and unlisted else None
    return answer


def _take_anchors(service: Service, store: str, old: str, new: str, name: str) -> dict[str, Any]:
    """Make the anchor set of the store's rows, or find the one of an earlier call."""
    known = service.find("anchor-sets", name)
    if known is None:
        typer.echo(f"{new} embeds texts of {store}: this can take some minutes.", err=True)
        service.wait(service.post("/anchor-sets", name=name, store=store, encoders=[new]))
        known = service.get(at("anchor-sets", name))
    elif not {old, new} <= set(known["encoders"]):
        raise typer.BadParameter(
            f"There is an anchor set {name} of other encoders. Pass another --anchor-set."
        )
    return dict(known)


def _compare(service: Service, store: str, encoders: list[str]) -> None:
    """Compare the encoders on the store's texts; say why where that cannot be done."""
    typer.echo("Comparing the encoders on texts of the store.", err=True)
    try:
        service.wait(service.post("/compare", encoders=encoders, store=store))
    except Refused as error:
        typer.echo(f"The encoders are not compared. {error}", err=True)


def _place(
    address: str,
    kind: str | None,
    collection: str | None,
    text_field: str | None,
    vector_field: str | None,
    source: str | None,
    store: str | None,
) -> StorePlace:
    """Return the store at an address. Raises typer.BadParameter."""
    from app.cli.onboarding.store_places import StorePlace, kind_of, name_of

    kind = kind or kind_of(address)
    if collection is None:
        raise typer.BadParameter("Pass --collection with the name of the table or collection.")
    if text_field is None and kind != "chroma":
        raise typer.BadParameter(
            "Pass --text-field with the column or field of the texts: the new encoder reads some "
            "of them. Where the texts are gone, pass vectors by both encoders in files."
        )
    name = store or name_of(collection)
    check_name(name, f"--store: {name!r} is no name.")
    if "://" not in address:
        address = str(Path(address).resolve())
    return StorePlace(
        *(name, "", kind, address, collection, text_field, vector_field),
        source=source or f"{name}-old",
    )


def _ask(
    source: str | None,
    target: str | None,
    items: int | None,
    old_encoder_runs: bool | None,
    texts_exist: bool | None,
    *,
    runs: bool,
) -> tuple[str, str, int | None, bool, bool]:
    """Ask on standard error for what no option said. Raises typer.Abort at the end of the input.

    runs  the usual answer to whether the old encoder runs
    """
    prompt = partial(typer.prompt, err=True)
    place = f"Vectors of the old encoder (file, folder or {STORE_PREFIX}NAME)"
    source = _existing(source) if source else prompt(place, value_proc=_existing)
    from_store = source.startswith(STORE_PREFIX)
    if from_store:
        question = "The new encoder: its name, or a model such as all-MiniLM-L6-v2"
        target = target or prompt(question)
    else:
        place = "The same items by the new encoder (file or folder)"
        target = _existing(target) if target else prompt(place, value_proc=_existing)
        question = "How many items does your index have?"
        items = items or prompt(question, value_proc=_count)
    if old_encoder_runs is None:
        question = "Can the old encoder still embed queries?"
        old_encoder_runs = typer.confirm(question, runs, err=True)
    if texts_exist is None:
        question = "Can the items be embedded again?"
        texts_exist = from_store or typer.confirm(question, True, err=True)
    return source, target, items, old_encoder_runs, texts_exist


def _count(text: str) -> int:
    """Return a number of items, which may have separators. Raises typer.BadParameter."""
    digits = text.replace(",", "").replace("_", "").strip()
    if not digits.isascii() or not digits.isdigit() or int(digits) < 1:
        raise typer.BadParameter(f"A number of items is a whole number from 1, not {text!r}.")
    return int(digits)


def _existing(place: str) -> str:
    """Return the name of a store, or of a file or folder that exists. Raises typer.BadParameter."""
    if not place.startswith(STORE_PREFIX) and not Path(place).exists():
        raise typer.BadParameter(f"There is no file or folder {place}.")
    return place


def _read(files: dict[str, str]) -> dict[str, NDArray[np.float32]]:
    """Return the anchors of each encoder, from its file or folder. Raises typer.BadParameter."""
    from app.cli.onboarding.anchor_input import MAX_ANCHORS, read_vectors, spread

    rows = {name: read_vectors(Path(place)) for name, place in files.items()}
    (old, old_count), (new, new_count) = ((files[name], len(rows[name])) for name in files)
    if old_count != new_count:
        raise typer.BadParameter(
            f"{old} has {old_count:,} rows and {new} {new_count:,}. Row i must be the same item "
            "in both."
        )
    return {name: spread(each, MAX_ANCHORS) for name, each in rows.items()}


def _register(service: Service, anchors: dict[str, NDArray[np.float32]]) -> None:
    """Register the encoders, or find those of an earlier call. Raises typer.BadParameter."""
    found = {name: service.find("encoders", name) for name in anchors}
    for name, known in found.items():
        dim = anchors[name].shape[1]
        if known is not None and (known["kind"], known["dim"]) != ("external", dim):
            raise typer.BadParameter(
                f"There is another encoder {name}. Encoders are named after their files and "
                "folders: rename that one."
            )
    for name, known in found.items():
        if known is None:
            service.post("/encoders", name=name, dim=anchors[name].shape[1])


def _make_set(service: Service, name: str, anchors: dict[str, NDArray[np.float32]]) -> None:
    """Make the anchor set, or find it with the same vectors. Raises typer.BadParameter."""
    from app.cli.files import post_anchors

    known = service.find("anchor-sets", name)
    if known is None:
        post_anchors(service, name, anchors)
    elif not all(_has(service, known, encoder, rows) for encoder, rows in anchors.items()):
        raise typer.BadParameter(
            f"There is an anchor set {name} with other vectors. Pass another --anchor-set."
        )


def _has(
    service: Service, known: dict[str, Any], encoder: str, vectors: NDArray[np.float32]
) -> bool:
    """Return whether a set has an encoder's vectors, by some of its rows."""
    from app.cli.files import to_wire

    if encoder not in known["encoders"] or known["size"] != len(vectors):
        return False
    rows = sorted({round(each * (len(vectors) - 1) / COMPARED_ROWS) for each in range(101)})
    found = service.post(
        "/relative",
        encoder=encoder,
        anchor_set=known["name"],
        vectors=to_wire(vectors[rows]),
    )
    return all(
        cosines[row] > SAME_COSINE for cosines, row in zip(found["vectors"], rows, strict=True)
    )


def _advise(
    service: Service, source: str, target: str, anchor_set: str, **facts: Any
) -> dict[str, Any]:
    """Return the findings about the anchor set, and the advice."""
    typer.echo("Measuring: this can take a minute.", err=True)
    pair = {"source": source, "target": target, "anchor_set": anchor_set}
    examined = service.get(at("anchor-sets", anchor_set, "report"))
    return {
        **pair,
        "anchors": examined["size"],
        "corpus_size": facts["corpus_size"],
        "findings": examined["findings"],
        **service.post("/advice", **pair, **facts),
        **{"store": None, "setting": None, "tokens": None, "files": None},
    }
