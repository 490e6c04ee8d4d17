"""`anchorage search`: what a model finds in a store."""

from __future__ import annotations

from typing import Annotated

import typer

from app.cli.output import AsJson, print_rows, warn
from app.cli.service import DEFAULT_URL, Url, connect, in_words_of_commands
from app.cli.stores import Name

#: columns of the results, and most characters of a text
RESULT_COLUMNS, TEXT_SHOWN = ("rank", "id", "score", "text"), 100

#: what the scores of a metric are
SCORES = {"cosine": "cosine", "dot": "inner product", "euclidean": "minus the (squared) distance"}


def search(
    store: Name,
    query: Annotated[str, typer.Argument(help="A text.")],
    by: Annotated[
        str | None,
        typer.Option(help="The encoder of the query; default: the target of its migration."),
    ] = None,
    anchor_set: Annotated[
        str | None, typer.Option(help="Anchors of both encoders; default: its migration's.")
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, max=1000, help="Results.")] = 10,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Search a store, also by another encoder than made its vectors. Writes nothing to it."""
    from app.anchors.store_texts import shown_text

    if not query.strip():
        raise typer.BadParameter("The text of the search is empty.")
    with connect(url, store) as client:
        found = client.stores.get(store)
        migrations = client.migrations.list(store=store)
        by = by or (migrations[0]["target"] if migrations else found["encoder"])
        answer = client.stores.search(
            store, target=by, anchor_set=anchor_set, inputs=[query], k=k, payload=True
        )
    hits, about = answer.results[0], answer.about
    payloads = hits.payloads or [{}] * len(hits.ids)
    texts = [shown_text(found["text_field"], each)[:TEXT_SHOWN] for each in payloads]
    scores = [round(each, 4) for each in hits.scores]
    ranked = zip(range(1, k + 1), hits.ids, scores, texts, strict=False)
    print_rows(RESULT_COLUMNS, list(ranked), as_json=as_json)
    where = ""
    if migrations and migrations[0]["ended_at"] is None:
        where = f", in the {about['side']} vectors"
        if about["side"] == "old" and about["new_vectors"]:
            where += ", scored by the new ones"
    parts = " and ".join((about["combined"] or {}).get("scores", []))
    where += f"; scores: {f'combined, {parts}' if parts else SCORES[found['metric']]}"
    typer.echo(f"By {by}{where}.", err=True)
    for each in about["warnings"]:
        warn(in_words_of_commands(each["detail"], store))
