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
from app.demo.pack import load_pack

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


def call(tmp_path: Path, *arguments: str, **settings: str) -> Any:
    """What a command prints on standard output, as JSON."""
    given = {f"ANCHORAGE_{name.upper()}": value for name, value in settings.items()}
    result = CliRunner().invoke(
        cli, [*arguments, "--json"], env={"ANCHORAGE_DATA_DIR": str(tmp_path / "data"), **given}
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
    stores = json.dumps({"disk": str(tmp_path / "lake")})

    assert call(tmp_path, "db", "upgrade")["key"] is None
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
        stores=stores,
    )
    assert (store["rows"], store["dim"]) == (200, 256)
    assert [row["name"] for row in call(tmp_path, "stores", "list", stores=stores)] == ["shop"]
    np.save(tmp_path / "query.npy", pack.vectors["minilm6-384"][300:302].numpy())
    found = call(
        tmp_path,
        *("stores", "search", "shop", "--target", "new", "--anchor-set", "faq", "-k", "3"),
        *("--vectors", str(tmp_path / "query.npy")),
        stores=stores,
    )
    assert [len(result["ids"]) for result in found["results"]] == [3, 3]
    plan = call(
        tmp_path,
        *("migrate", "shop", "--target", "new", "--anchor-set", "faq"),
        *("-o", str(tmp_path / "plan.json")),
        stores=stores,
    )
    ran = call(tmp_path, "migrate", "run", str(tmp_path / "plan.json"), stores=stores)
    assert (ran["id"], ran["state"]) == (plan["migration"], "filled")
    assert [row["id"] for row in call(tmp_path, "migrate", "status", stores=stores)] == [ran["id"]]
    gone = call(tmp_path, "migrate", "abandon", ran["id"], "--yes", stores=stores)
    assert gone["state"] == "abandoned"
    backup = call(tmp_path, "db", "backup", str(tmp_path / "backup"))
    assert backup["rows"] > 0
    assert call(tmp_path, "stores", "disconnect", "shop", stores=stores)["name"] == "shop"
