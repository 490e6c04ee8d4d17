from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from anchorage_client import Client, LocalTranslator, Translator

#: methods whose translators differ in form: a kernel, plain, and stretched to kept norms
FORMS: list[tuple[str, dict[str, object]]] = [
    ("auto", {}),
    ("irp", {}),
    ("ridge", {"renormalise": False}),
    ("procrustes", {"keep_norms": True}),
]


def translator_at_home(mean: float = 0.0, dim: int = 2) -> LocalTranslator:
    """A translator that the service never saw, and that keeps no norms."""
    return LocalTranslator(
        np.full(dim, mean, np.float32),
        np.eye(dim, dtype=np.float32),
        np.zeros(dim, np.float32),
        None,
        scale=1.0,
        renormalise=True,
        kept_scale=None,
        about={},
    )


def deviation(one: np.ndarray, other: np.ndarray) -> float:
    """The largest distance of two rows, relative to the longest."""
    return float(np.linalg.norm(one - other, axis=1).max() / np.linalg.norm(other, axis=1).max())


def by_onnx(translator: Translator, path: Path, rows: np.ndarray) -> np.ndarray:
    """What the translator's ONNX file answers."""
    onnxruntime = pytest.importorskip("onnxruntime")
    translator.save_onnx(path)
    session = onnxruntime.InferenceSession(path.read_bytes())
    assert session.get_modelmeta().custom_metadata_map["id"] == translator.id
    (found,) = session.run(["translated"], {"vectors": rows})
    return found


@pytest.mark.parametrize(("method", "options"), FORMS)
def test_a_translation_at_home_by_file_and_by_onnx_is_that_of_the_service(
    client: Client, pair, tmp_path, method, options
):
    translator: Translator = client.translator(**pair.names, method=method, options=options)
    served = client.translate(pair.old, **pair.names, method=method, options=options)
    # A kernel's large coefficients amplify the rounding of float32, also in the service.
    bound = 5e-6 if translator.download().landmarks is not None else 1e-6
    here = translator.apply_locally(pair.old)
    assert deviation(here, served.vectors) < bound
    assert deviation(by_onnx(translator, tmp_path / "t.onnx", pair.old), here) < 5e-6
    path = tmp_path / "translator.safetensors"
    translator.save_safetensors(path)
    loaded = LocalTranslator.load(path)
    np.testing.assert_array_equal(loaded.apply(pair.old).vectors, here)
    assert loaded.about == translator.download().about
    named = {"id": translator.id, "source": pair.source, "target": pair.target}
    assert named.items() <= loaded.about.items()


@pytest.mark.parametrize(("method", "options"), [("kernel", {}), *FORMS[1:2], *FORMS[-1:]])
def test_rows_without_a_direction_and_of_any_size_are_the_services(
    client, new_pair, tmp_path, method, options
):
    pair = new_pair(anchors=40)  # they span fewer dimensions than the vectors have
    translator: Translator = client.translator(**pair.names, method=method, options=options)
    local = translator.download()
    mean = local.source_mean.astype(np.float64)
    away = pair.old[:1] - mean
    rows = np.concatenate(
        [mean[None], mean[None] * (1 + 1e-7), mean + away * 1e-3, mean + away * 1e12]
    ).astype(np.float32)
    served = client.translate(rows, **pair.names, method=method, options=options)
    here = local.apply(rows)
    flagged = {flag["row"] for flag in served.flags}
    assert flagged == set(np.flatnonzero(here.at_mean | here.outside))
    assert {0, 1} <= flagged
    exported = by_onnx(translator, tmp_path / "translator.onnx", rows)
    for found in (served.vectors, exported):
        for row in range(len(rows)):
            near = deviation(here.vectors[row : row + 1], found[row : row + 1])
            # Near the mean, x - m has few digits left in float32.
            assert near < (1e-3 if row == 2 else 5e-6), row


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.zeros((2, 5)), "reads vectors of 2 numbers, and these have 5"),
        (np.full((3, 2), np.nan), "NaN or infinity in 3 rows"),
        (np.zeros(2), "shape"),
        ([[1.0, 1.0]] * 600 + [[1e39, 1.0]], r"float32.* in row 600"),
        ([[1.0, 1.0]] * 600 + [[float(np.finfo(np.float32).max), 1.0]], r"float32.* in row 600"),
    ],
)
def test_wrong_vectors_are_refused(rows, message):
    with pytest.raises(ValueError, match=message):
        translator_at_home(mean=-1e32).apply(rows)


EMPTY_OF_TWO = b"\x02" + b"\0" * 7


@pytest.mark.parametrize(
    "data",
    [
        *(translator_at_home().to_bytes()[:cut] for cut in (-4, 100)),
        *(b"", b"{}", EMPTY_OF_TWO + b"[]", EMPTY_OF_TWO + b"{}", b"\xff" * 40),
    ],
)
def test_another_file_is_refused(data: bytes):
    with pytest.raises(ValueError, match=r"is not a translator of Anchorage|cut off"):
        LocalTranslator.from_bytes(data)
