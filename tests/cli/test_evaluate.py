"""`anchorage evaluate` and its GitHub action, on questions to a bank."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch
import typer
import yaml
from typer.testing import CliRunner, Result

from app.cli.commands import cli
from app.cli.evaluate import measure
from app.cli.files import read_items, read_judgements, to_wire
from app.demo.pack import load_pack
from app.demo.run import write_store
from scripts.servers import serve
from tests.cli.test_commands import said

ROOT = Path(__file__).parents[2]
ACTION = ROOT / "deploy" / "github-action" / "action.yml"
DOCUMENTS, QUERIES = 80, 21


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of BEIR: the index's first questions, and judged ones, of the same intent."""
    pack, folder = load_pack(), tmp_path_factory.mktemp("files")
    labels = pack.labels[pack.index][:DOCUMENTS]
    asked = [row for row in range(len(pack.labels))[pack.queries] if pack.labels[row] in labels]
    asked = asked[:QUERIES]

    def write(name: str, rows: list[dict[str, Any]]) -> None:
        lines = (json.dumps(row, ensure_ascii=False) for row in rows)
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")

    texts = pack.sentences[pack.index][:DOCUMENTS]
    corpus = [{"_id": str(id_), "title": "", "text": text} for id_, text in enumerate(texts)]
    write("corpus.jsonl", corpus)
    write("queries.jsonl", [{"_id": f"q{row}", "text": pack.sentences[row]} for row in asked])
    pairs = [(row, id_) for row in asked for id_ in range(DOCUMENTS)]
    lines = [f"q{row}\t{id_}\t1\n" for row, id_ in pairs if pack.labels[row] == labels[id_]]
    (folder / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
    return folder


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service with the store `docs` of an old encoder, and a new encoder that runs."""
    pack, lake = load_pack(), tmp_path_factory.mktemp("lake")
    write_store(lake, pack, rows=DOCUMENTS)
    with (
        serve(stores=json.dumps({"lake": str(lake)})) as server,
        httpx2.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=120) as http,
    ):

        def post(path: str, **body: Any) -> None:
            http.post(path, json=body).raise_for_status()

        post("/encoders", name="old", dim=512)
        post("/encoders", name="new", kind="sentence-transformers", model="all-MiniLM-L6-v2")
        anchors = {"old": to_wire(pack.old[:400].numpy()), "new": to_wire(pack.new[:400].numpy())}
        post("/anchor-sets", name="bridge", embeddings=anchors)
        about = {"collection": "questions", "id_field": "id", "text_field": "text"}
        post("/stores", name="docs", kind="lancedb", address="lake", encoder="old", **about)
        yield str(http.base_url).rstrip("/")


def evaluate(url: str, files: Path, *more: str, **pair: str) -> Result:
    names = {"source": "old", "target": "new", "anchor_set": "bridge", **pair}
    options = [text for name, value in names.items() for text in (_option(name), value)]
    paths = ["--queries", str(files / "queries.jsonl"), "--documents", str(files / "corpus.jsonl")]
    environment = {"ANCHORAGE_URL": url, "COLUMNS": "200", "GITHUB_STEP_SUMMARY": ""}
    return CliRunner().invoke(cli, ["evaluate", *options, *paths, *more], env=environment)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def test_a_store_passes_and_fails_by_the_lower_end(service: str, files: Path) -> None:
    judged = ("--store", "docs", "--native", "0", "--judgements", str(files / "qrels.tsv"))
    done = evaluate(service, files, *judged, "--fail-under", "0.5", "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert (report["queries"], report["documents"], report["judged"]) == (QUERIES, DOCUMENTS, True)
    assert (report["option"], report["passed"]) == ("cascade", True)
    share = report["share"]
    assert 0.5 < share["low"] < share["value"] < share["high"]
    ratio = report["ndcg_10"]["found"] / report["ndcg_10"]["re-embed"]
    assert share["value"] == pytest.approx(ratio)
    between = (share["low"] + share["value"]) / 2
    failed = evaluate(service, files, *judged, "--fail-under", str(between))
    assert failed.exit_code == 1
    assert "### old -> new@bridge: failed" in failed.stdout
    fused = evaluate(service, files, *judged[:2], *judged[4:], "--json")
    assert json.loads(fused.stdout)["option"] == "native-cascade"
    assert json.loads(fused.stdout)["passed"] is None


def test_without_judgements_the_new_encoders_results_are_relevant(
    service: str, files: Path
) -> None:
    done = evaluate(service, files, "--json", source="new")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["option"] == "translate"
    assert not report["judged"]
    assert report["ndcg_10"]["re-embed"] == pytest.approx(1)
    assert report["share"]["value"] == pytest.approx(1, abs=0.02)


def test_long_texts_are_cut_as_those_of_stores(service: str, files: Path, tmp_path: Path) -> None:
    lines = (files / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
    long = {**json.loads(lines[0]), "text": json.loads(lines[0])["text"] + " word" * 9_000}
    (tmp_path / "long.jsonl").write_text("\n".join([json.dumps(long), *lines[1:]]))
    named = ("--store", "docs", "--native", "0", "--documents", str(tmp_path / "long.jsonl"))
    done = evaluate(service, files, *named)
    assert done.exit_code == 0, done.output
    assert "1 texts of" in said(done.stderr)
    assert "cut to 32,768 characters" in said(done.stderr)


def test_what_cannot_be_compared_is_refused(service: str, files: Path, tmp_path: Path) -> None:
    few = tmp_path / "few.jsonl"
    few.write_text((files / "corpus.jsonl").read_text().split("\n")[0])
    other = tmp_path / "qrels"
    other.write_text("q1 0 1 1\n")
    for arguments, expected in (
        (("--store", "docs", "--documents", str(few)), "has 80 rows, and --documents 1."),
        (("--judgements", str(other)), "--judgements names 1 ids that --queries lacks: q1."),
        (("--mode", "fuse"), "--mode and --native need --store."),
        (("--store", "docs", "--mode", "all"), "There is no mode 'all'."),
        (("--store", "none"), "none"),
        ((), "The service does not run old: name a --store"),
    ):
        refused = evaluate(service, files, *arguments)
        assert refused.exit_code == 2, refused.output
        assert expected in said(refused.stderr)


@pytest.mark.parametrize(
    ("text", "grades"),
    [
        ("1 0 d1 2\n1 Q0 d2 -1\n", {("1", "d1"): 2, ("1", "d2"): 0}),
        ("query-id\tcorpus-id\tscore\na b\tc d\t1\n", {("a b", "c d"): 1}),
        ('{"query": 1, "document": "d"}\n\n{"query": 1, "document": "e", "grade": 0.5}', None),
    ],
)
def test_judgements_are_read_as_users_have_them(tmp_path: Path, text: str, grades: Any) -> None:
    (tmp_path / "qrels").write_text(text)
    found = read_judgements(tmp_path / "qrels")
    assert found == (grades or {("1", "d"): 1, ("1", "e"): 0.5})


@pytest.mark.parametrize(
    "text", ["1 2\n", "a b c d e", "1 0 d x", "1 0 d inf", "{1}", '{"query":1}']
)
def test_what_is_no_judgement_is_named_by_its_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "qrels").write_text("1 0 d 1\n" + text)
    with pytest.raises(typer.BadParameter, match=r"Line 2 of .*qrels is no"):
        read_judgements(tmp_path / "qrels")
    (tmp_path / "qrels").write_text("1 0 d 1\n1 0 d 2")
    with pytest.raises(typer.BadParameter, match=r"Line 2 of .* grades d for 1 a second time"):
        read_judgements(tmp_path / "qrels")


def test_items_have_an_id_of_their_own_and_a_title_before_the_text(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"_id": "1", "title": "T", "text": "a\u2028b"}\n{"_id": 2, "text": "c"}\n')
    assert read_items(path) == {"1": "T a\u2028b", "2": "c"}
    for line in ('{"_id": "1", "text": "d"}', '{"text": "d"}', '{"_id": "3"}', "[]", "d"):
        path.write_text('{"_id": "1", "text": "a"}\n' + line)
        with pytest.raises(typer.BadParameter, match=r"Line 2 of .*corpus\.jsonl"):
            read_items(path)


def test_the_interval_of_the_share_holds_the_ratio_of_other_queries() -> None:
    """Of 200 draws of 60 queries, about 95 % of the intervals hold the ratio of all queries."""
    draw = torch.Generator().manual_seed(3)
    count, documents = 4_000, [str(row) for row in range(40)]
    rank = torch.randint(10, (count,), generator=draw)
    best = torch.stack([torch.arange(1, 11)] * count)
    best[torch.arange(count), rank] = 0
    found = best.clone()
    worse = torch.rand(count, generator=draw) < 0.3
    found[worse] = torch.arange(20, 30)

    def share(rows: torch.Tensor) -> dict[str, float]:
        names = [str(int(row)) for row in rows]
        grades = {(name, "0"): 1.0 for name in names}
        measured: dict[str, float] = measure(found[rows], best[rows], names, documents, grades)[
            "share"
        ]
        return measured

    truth = share(torch.arange(count))["value"]
    drawn = [share(torch.randperm(count, generator=draw)[:60]) for _ in range(200)]
    assert 0.9 <= sum(each["low"] <= truth <= each["high"] for each in drawn) / 200 <= 0.99


def test_the_action_runs_the_command(service: str, files: Path, tmp_path: Path) -> None:
    action = yaml.safe_load(ACTION.read_text())
    inputs = {
        "url": service,
        "source": "old",
        "target": "new",
        "anchor-set": "bridge",
        "queries": str(files / "queries.jsonl"),
        "documents": str(files / "corpus.jsonl"),
        "judgements": str(files / "qrels.tsv"),
        "store": "docs",
        "native": "0",
        "fail-under": "0.5",
    }
    assert {name for name, each in action["inputs"].items() if each.get("required")} <= set(inputs)

    def run(**changes: str) -> list[int]:
        given = {**dict.fromkeys(action["inputs"], ""), **inputs, **changes}
        codes = []
        for step in action["runs"]["steps"]:
            own = {name: _filled(text, given) for name, text in step.get("env", {}).items()}
            environment = {
                **{name: text for name, text in os.environ.items() if "ANCHORAGE" not in name},
                **own,
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
                "GITHUB_ACTION_PATH": str(ACTION.parent),
            }
            command = [step["shell"], "-e", "-o", "pipefail", "-c", step["run"]]
            codes.append(subprocess.run(command, env=environment, check=False).returncode)
        return codes

    assert run() == [0, 0]
    assert "### old -> new@bridge: passed" in (tmp_path / "summary").read_text()
    assert run(**{"fail-under": "1"}) == [0, 1]
    assert (tmp_path / "summary").read_text().count("| share |") == 2


def _filled(text: str, inputs: dict[str, str]) -> str:
    return re.sub(r"\$\{\{ inputs\.([a-z-]+) \}\}", lambda found: inputs[found[1]], text)


def test_the_workflow_of_the_page_fits_the_action() -> None:
    page = (ROOT / "docs" / "how-to" / "ci.md").read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    steps = [
        step
        for block in blocks
        for job in yaml.safe_load(block)["jobs"].values()
        for step in job["steps"]
        if "deploy/github-action" in step.get("uses", "")
    ]
    inputs = yaml.safe_load(ACTION.read_text())["inputs"]
    required = {name for name, each in inputs.items() if each.get("required")}
    assert len(steps) == 1
    assert required <= set(steps[0]["with"]) <= set(inputs)
