"""--json: every command that prints results prints them as JSON too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lancedb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import typer
from typer.testing import CliRunner

from app.cli.commands import cli
from app.demo.pack import Pack, load_pack
from app.settings import Settings, StoreEntry
from tests.cli.conftest import running

#: commands that serve, and one whose --json names a file
OTHERS = {"serve", "worker", "demo"}


def commands() -> dict[str, Any]:
    """The options of every visible command, by its name."""
    group: Any = typer.main.get_command(cli)
    found = {}
    for name, command in group.commands.items():
        inner = getattr(command, "commands", {"": command})
        found |= {f"{name} {each}".strip(): inner[each] for each in inner if not command.hidden}
    return found


def test_every_command_has_json():
    lacking = {
        name
        for name, command in commands().items()
        if not any("--json" in option.opts for option in command.params)
    }
    assert lacking == OTHERS - {"demo"}


def call(tmp_path: Path, *arguments: str) -> Any:
    """What a command prints on standard output, as JSON."""
    result = CliRunner().invoke(
        cli, [*arguments, "--json"], env={"ANCHORAGE_DATA_DIR": str(tmp_path / "data")}
    )
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_pair_a_store_and_its_migration_by_scripts(tmp_path: Path):
    pack = load_pack()
    folder = tmp_path / "vectors"
    folder.mkdir()
    for name, encoder in (("old", "static-256"), ("new", "minilm6-384")):
        np.save(tmp_path / f"{name}.npy", pack.vectors[encoder][:120].numpy())
    rows = pack.vectors["static-256"][300:500].numpy()
    column = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1])
    table = pa.table({"id": range(len(rows)), "vector": column})
    pq.write_table(table, folder / "rows.parquet")
    lancedb.connect(tmp_path / "lake").create_table("rows", table)
    assert call(tmp_path, "db", "upgrade")["key"] is None
    stores = {"disk": StoreEntry(url=str(tmp_path / "lake"))}
    with running(Settings(data_dir=tmp_path / "data", stores=stores)):
        run_every_command(tmp_path, folder, pack)


def run_every_command(tmp_path: Path, folder: Path, pack: Pack) -> None:
    pair = call(
        tmp_path,
        *(
            "quickstart",
            "--source",
            str(tmp_path / "old.npy"),
            "--target",
            str(tmp_path / "new.npy"),
        ),
        *("--items", "1000", "--old-encoder-runs", "--no-texts-exist", "--anchor-set", "faq"),
    )
    assert (pair["source"], pair["target"], pair["anchors"]) == ("old", "new", 120)
    made = call(tmp_path, "keys", "create", "--name", "script", "--scope", "write")
    encoders = call(tmp_path, "encoders", "list")
    assert [(row["name"], row["dim"]) for row in encoders] == [("new", 384), ("old", 256)]
    assert call(tmp_path, "encoders", "add", "own", "--dim", "3")["kind"] == "external"
    [anchors] = call(tmp_path, "anchors", "list")
    assert (anchors["name"], anchors["size"]) == ("faq", 120)
    listed = call(tmp_path, "keys", "list")
    assert [(row["id"], row["last_used"]) for row in listed] == [(made["id"], None)]
    rotated = call(tmp_path, "keys", "rotate", made["id"])
    assert rotated["key"] != made["key"]
    assert call(tmp_path, "keys", "revoke", rotated["id"])["state"] == "revoked"
    done = call(
        tmp_path,
        *("translate", str(folder / "rows.parquet"), str(tmp_path / "out.parquet")),
        *("--source", "old", "--target", "new", "--anchor-set", "faq"),
    )
    assert (done["rows"], done["flagged"]) == (200, 0)
    store = call(
        tmp_path,
        *("stores", "connect", "shop", "--kind", "lancedb", "--address", "disk"),
        *("--collection", "rows", "--encoder", "old", "--id-field", "id"),
    )
    assert (store["rows"], store["dim"]) == (200, 256)
    assert [row["name"] for row in call(tmp_path, "stores", "list")] == ["shop"]
    np.save(tmp_path / "query.npy", pack.vectors["minilm6-384"][300:302].numpy())
    found = call(
        tmp_path,
        *("stores", "search", "shop", "--target", "new", "--anchor-set", "faq", "-k", "3"),
        *("--vectors", str(tmp_path / "query.npy")),
    )
    assert [len(result["ids"]) for result in found["results"]] == [3, 3]
    plan = call(tmp_path, "migrate", "shop", "--target", "new", "--anchor-set", "faq")
    ran = call(tmp_path, "migrate", "run", "shop")
    assert (ran["id"], ran["state"]) == (plan["migration"], "filled")
    assert [row["id"] for row in call(tmp_path, "migrate", "status")] == [ran["id"]]
    gone = call(tmp_path, "migrate", "abandon", ran["id"], "--yes")
    assert gone["state"] == "abandoned"
    assert call(tmp_path, "stores", "disconnect", "shop")["name"] == "shop"
