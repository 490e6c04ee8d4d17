"""`anchorage quickstart`: five questions, then a working pair and a report."""

from __future__ import annotations

import logging
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.output import AsJson, print_json
from app.cli.shared import (
    TextField,
    VectorField,
    explain_faults,
    open_services,
    read_settings,
    validate,
)
from app.errors import AnchorageError
from app.services.request_context import RequestContext

if TYPE_CHECKING:
    from torch import Tensor

    from app.cli.onboarding.store_places import StorePlace
    from app.services.context import Services

#: how a store is named where a file or folder could be
STORE_PREFIX = "store:"

#: characters that names of encoders and sets cannot have
NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")


def quickstart(
    address: Annotated[
        str | None,
        typer.Argument(
            help="Your vector store: postgresql://..., http://... of Qdrant, or a folder or file.",
            show_default=False,
        ),
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
    project: Annotated[str, typer.Option(help="The project of the pair.")] = "default",
    as_json: AsJson = False,
) -> None:
    """Say what to do with an index whose model changes, and leave a search that works.

    With the address of a store it reads the store, takes anchors from it, and writes nothing to it.
    Without one it takes vectors from files, or a connected store, and asks for what no option says.
    It writes to the service's database; the service may keep running.
    """
    place, needed = None, "--source, --target, --items"
    if address is not None:
        needed = "--target"
        place = _place(address, collection, text_field, vector_field, source, store)
        source = f"{STORE_PREFIX}{place.name}"
    elif collection or text_field or vector_field or store:
        raise typer.BadParameter(
            "--collection, --store and the fields describe the store at an address."
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
    encoders = (source, target) if from_store else _encoder_names(Path(source), Path(target))
    if anchor_set is not None or not from_store:
        anchor_set = anchor_set or "-".join(encoders)
        _check_name(anchor_set, f"--anchor-set: {anchor_set!r} is no name.")
    if not as_json and not report.absolute().parent.is_dir():
        raise typer.BadParameter(f"--report: there is no folder {report.absolute().parent}.")
    settings = read_settings()
    if place is not None:
        place = place.listed_in(settings.stores)
        unlisted = place.listed not in settings.stores
        settings = read_settings(stores={**settings.stores, place.listed: place.address})
    with explain_faults(), open_services(settings) as services:
        services.db.upgrade()
        typer.echo(f"It writes to {settings.data_dir.absolute()}, and to no store.", err=True)
        if from_store:
            from app.cli.onboarding import store_places
            from app.cli.onboarding.anchor_input import read_store

            store = source.removeprefix(STORE_PREFIX)
            take_back = None
            if place is not None:
                logging.getLogger("sentence_transformers").setLevel(logging.WARNING)
                take_back = place.connect(services, project)
            try:
                if place is not None:
                    target = store_places.find_or_load(services, project, target)
                read = read_store(services, project, store, target)
            except (AnchorageError, typer.BadParameter):
                if take_back is not None:
                    take_back()
                raise
            old, new, items, anchors = read.source, target, read.rows, read.anchors
            if old_encoder_runs:
                _compare(services, project, store, [old, new])
        else:
            old, new = encoders
            anchors = _register(
                services, project, dict(zip(encoders, (source, target), strict=True))
            )
        typer.echo("Measuring: this can take a minute.", err=True)
        answer = _advise(
            services,
            project,
            anchors,
            anchor_set=anchor_set or (f"{old}-{new}" if place is None else place.name),
            source=old,
            target=new,
            corpus_size=items,
            old_encoder_runs=old_encoder_runs,
            text_exists=texts_exist,
        )
        answer["store"] = store if from_store else None
        answer["setting"] = place.setting() if place is not None and unlisted else None
        answer["tokens"] = round(read.tokens_per_row * read.rows) if from_store else None
        answer["price"] = price
    if as_json:
        print_json(answer)
        return
    from app.cli.onboarding.report import as_markdown, print_report

    report.write_text(as_markdown(answer), encoding="utf-8")
    print_report(answer)
    typer.echo(f"\nThe report is in {report}.")


def _compare(services: Services, project: str, store: str, encoders: list[str]) -> None:
    """Compare the encoders on the store's texts; say why where that cannot be done."""
    from app.services.relevance.comparison import Comparison, compare

    typer.echo("Comparing the encoders on texts of the store.", err=True)
    try:
        done = compare(services, RequestContext(project), Comparison(encoders, store))
    except AnchorageError as error:
        typer.echo(f"The encoders are not compared. {error.detail}", err=True)
    else:
        with services.db.transaction() as session:
            done.write(session)


def _place(
    address: str,
    collection: str | None,
    text_field: str | None,
    vector_field: str | None,
    source: str | None,
    store: str | None,
) -> StorePlace:
    """Return the store at an address. Raises typer.BadParameter."""
    from app.cli.onboarding.store_places import StorePlace, kind_of, name_of

    kind = kind_of(address)
    if collection is None:
        raise typer.BadParameter("Pass --collection with the name of the table or collection.")
    if text_field is None and kind != "chroma":
        raise typer.BadParameter(
            "Pass --text-field with the column or field of the texts: the new encoder reads some "
            "of them. Where the texts are gone, pass vectors by both encoders in files."
        )
    name = store or name_of(collection)
    _check_name(name, f"--store: {name!r} is no name.")
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


def _check_name(name: str, wrong: str) -> None:
    """Raise typer.BadParameter, which begins with `wrong`, for a name that the API refuses."""
    from app.api.schemas.fields import NAME_PATTERN

    if not re.fullmatch(NAME_PATTERN, name):
        raise typer.BadParameter(
            f"{wrong} Use letters, digits, `.`, `_` and `-`, the first a letter or a digit; at "
            "most 100."
        )


def _encoder_names(old: Path, new: Path) -> tuple[str, str]:
    """Return names made of those of the files or folders. Raises typer.BadParameter."""
    names = [NOT_IN_NAMES.sub("-", place.resolve().stem).strip("-") for place in (old, new)]
    if names[0] == names[1]:
        names = [f"{names[0]}-old", f"{names[1]}-new"]
    for place, name in zip((old, new), names, strict=True):
        _check_name(name, f"Rename {place}: no encoder can be named after it.")
    return names[0], names[1]


def _register(services: Services, project: str, places: dict[str, str]) -> dict[str, Tensor]:
    """Register an encoder for each place, and return their anchors.

    Raises typer.BadParameter before anything is registered, and AnchorageError.
    """
    from app.cli.onboarding.anchor_input import MAX_ANCHORS, read_vectors, spread
    from app.services.encoders.encoders import create_encoder
    from app.types import EncoderKind

    rows = {name: read_vectors(Path(place)) for name, place in places.items()}
    (old, old_count), (new, new_count) = ((places[name], len(rows[name])) for name in places)
    if old_count != new_count:
        raise typer.BadParameter(
            f"{old} has {old_count:,} rows and {new} {new_count:,}. Row i must be the same item "
            "in both."
        )
    most = min(MAX_ANCHORS, services.limits.vectors)
    anchors = {name: spread(each, most) for name, each in rows.items()}
    for encoder, vectors in anchors.items():
        if not _is_there(services, project, encoder, vectors.shape[1]):
            create_encoder(
                services,
                RequestContext(project),
                name=encoder,
                kind=EncoderKind.external,
                dim=vectors.shape[1],
            )
    return anchors


def _is_there(services: Services, project: str, name: str, dim: int) -> bool:
    """Return whether an earlier quickstart registered the encoder.

    Raises typer.BadParameter for another encoder of this name.
    """
    from app.errors import EncoderNotFound
    from app.storage import tables
    from app.storage.queries import resources
    from app.types import EncoderKind

    try:
        with services.db.transaction() as session:
            row = resources.by_name(session, tables.EncoderRow, project, name)
    except EncoderNotFound:
        return False
    if row.kind != EncoderKind.external or row.dim != dim:
        raise typer.BadParameter(
            f"There is another encoder {name}. Encoders are named after their files and folders: "
            "rename that one."
        )
    return True


def _make_set(services: Services, project: str, name: str, anchors: dict[str, Tensor]) -> None:
    """Make the anchor set, or find it with the same vectors. Raises AnchorageError."""
    import torch

    from app.errors import NameTaken
    from app.services.anchors import anchor_sets, spaces
    from app.storage import tables
    from app.storage.queries import resources

    try:
        anchor_sets.create_anchor_set(
            services, RequestContext(project), name=name, embeddings=anchors
        )
    except NameTaken:
        with services.db.transaction() as session:
            row = resources.by_name(session, tables.AnchorSetRow, project, name)
            rows = {space.encoder.name: space for space in row.spaces}
        stored = {
            encoder: spaces.raw_anchors(services, rows[encoder])
            for encoder in anchors.keys() & rows.keys()
        }
        if any(
            encoder not in stored or not torch.equal(stored[encoder], vectors)
            for encoder, vectors in anchors.items()
        ):
            raise typer.BadParameter(
                f"There is an anchor set {name} with other vectors. Pass another --anchor-set."
            ) from None


def _advise(
    services: Services,
    project: str,
    anchors: dict[str, Tensor],
    *,
    anchor_set: str,
    source: str,
    target: str,
    **facts: Any,
) -> dict[str, Any]:
    """Make the anchor set, and return its findings and the advice. Raises AnchorageError."""
    from app.api.resources.relevance.advice import AdviceOut, AdviceRequest
    from app.services.anchors import anchor_reports
    from app.services.relevance import advice

    context = RequestContext(project)
    pair = {"source": source, "target": target, "anchor_set": anchor_set}
    body = validate(AdviceRequest, **pair, **facts)
    _make_set(services, project, anchor_set, anchors)
    examined = anchor_reports.report_anchor_set(services, project, anchor_set)
    answer = advice.advise(services, context, body.advice_task(services, context))
    return {
        **pair,
        "anchors": examined["size"],
        "corpus_size": body.corpus_size,
        "findings": examined["findings"],
        **AdviceOut.model_validate(answer).model_dump(mode="json"),
    }
