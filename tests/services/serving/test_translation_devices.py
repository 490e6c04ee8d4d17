"""Large translations on a GPU of this process or of a model host, and on the CPU without one.

Without a GPU the device is the CPU under another name.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from app.encoders.hosting.addresses import HostAddress
from app.encoders.hosting.client import ModelHosts
from app.encoders.hosting.host import ModelHost
from app.encoders.pool import EncoderPool
from app.errors import NonFinite, OutOfRange
from app.maths.geometry.space import fit_space
from app.maths.translators import methods
from app.maths.translators.translator import Translator, apply
from app.services.context import Services, TranslationDevice
from app.services.serving import plans, products, translation_devices
from app.services.serving.maps import Translation
from app.services.serving.placed_translator import PlacedTranslator
from app.services.serving.products import TranslateProduct
from app.services.serving.translation_devices import HostDevice, OwnDevice, TranslateOperation
from app.services.translators.translators import FitRequest
from tests.services.helpers import CONTEXT, some

KEY = b"the key of the tests"
#: torch takes it for the CPU, and the code for another device
ELSEWHERE = "cpu:0"
WIDE = 600  # wide enough that a linear map is worth a message
ILLEGAL_ACCESS = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")


@pytest.fixture
def pool() -> Iterator[EncoderPool]:
    pool = EncoderPool(device=ELSEWHERE)
    yield pool
    pool.close()


@pytest.fixture
def host(pool: EncoderPool, tmp_path: Path) -> Iterator[ModelHost]:
    operations = {"translate": TranslateOperation(ELSEWHERE)}
    host = ModelHost(pool, HostAddress(path=f"{tmp_path}/m"), KEY, operations)
    host.start()
    yield host
    host.close()


@pytest.fixture(params=["own", "host"])
def device(request: pytest.FixtureRequest, pool: EncoderPool) -> Iterator[TranslationDevice]:
    if request.param == "own":
        device: TranslationDevice = OwnDevice(pool)
    else:
        device = HostDevice(ModelHosts([request.getfixturevalue("host").address], KEY))
    yield device
    device.close()


@pytest.fixture
def services(on_sqlite: Services, device: TranslationDevice) -> Services:
    return replace(on_sqlite, translation_device=device)


@pytest.fixture(scope="module", params=["ridge", "kernel"])
def translator(request: pytest.FixtureRequest) -> Translator:
    source = some(120, WIDE)
    spaces = fit_space(source), fit_space(source @ some(WIDE, 550, 3) + 1.0)
    return methods.fit(
        request.param, *spaces, methods.resolve(request.param, {}, anchors=len(source))
    )


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any two rows are worth a device, and a message has a few of them."""
    monkeypatch.setattr(products, "INLINE_MULTIPLICATIONS", 0)
    monkeypatch.setattr(translation_devices, "FEWEST_MULTIPLICATIONS", 1_000_000)
    monkeypatch.setattr(translation_devices, "FEWEST_MULTIPLICATIONS_PER_NUMBER", 100)
    monkeypatch.setattr(translation_devices, "MOST_PIECE_BYTES", 7 * 4 * WIDE)


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of rows that a device has translated."""
    counts: list[int] = []
    method = PlacedTranslator.apply_into

    def counted(self: PlacedTranslator, vectors: Tensor, out: Tensor) -> object:
        counts.append(len(vectors))
        return method(self, vectors, out)

    monkeypatch.setattr(PlacedTranslator, "apply_into", counted)
    return counts


@pytest.mark.parametrize("out_type", [torch.float32, torch.float16])
@pytest.mark.parametrize("in_type", [torch.float32, torch.float16])
def test_translations_and_flags_are_those_of_the_cpu(
    services: Services,
    translator: Translator,
    on_device: list[int],
    in_type: torch.dtype,
    out_type: torch.dtype,
) -> None:
    vectors = some(40, WIDE, 5).to(in_type)
    vectors[[3, 11, 39]] = translator.source_mean.to(in_type)
    expected = apply(translator, vectors)
    out = torch.empty(40, 550, dtype=out_type)
    for _ in range(2):  # the second time, the device has the translator
        made = products.begin(services, TranslateProduct(translator, "t"), vectors, out).result()
        rounding = 1e-4 if out_type is torch.float32 else 0.5
        torch.testing.assert_close(out.float(), expected.vectors, rtol=1e-3, atol=rounding)
        assert torch.equal(made.at_mean, expected.at_mean)
        assert torch.equal(made.outside, expected.outside)
    assert sum(on_device) == 80


@pytest.mark.parametrize(("number", "error"), [(torch.nan, NonFinite), (2.0**101, OutOfRange)])
def test_wrong_rows_are_named_by_their_place_in_the_request(
    services: Services, translator: Translator, number: float, error: type[Exception]
) -> None:
    vectors = some(40, WIDE, 6)
    vectors[[17, 30], 4] = number
    with pytest.raises(error) as caught:
        products.begin(services, TranslateProduct(translator, "t"), vectors).result()
    assert caught.value.rows == [17, 30]  # type: ignore[attr-defined]


def test_few_rows_other_precisions_and_translators_without_a_name_stay_on_the_cpu(
    services: Services, translator: Translator, on_device: list[int]
) -> None:
    named, nameless = TranslateProduct(translator, "t"), TranslateProduct(translator)
    products.begin(services, named, some(1, WIDE)).result()
    products.begin(services, nameless, some(9, WIDE)).result()
    products.begin(services, named, some(9, WIDE), precision="bfloat16").result()
    assert on_device == []


def test_a_served_translation_has_a_name(on_sqlite: Services, stock) -> None:  # type: ignore[no-untyped-def]
    served = plans.prepare_map(
        stock(on_sqlite), CONTEXT, Translation(FitRequest("a", "b", "s", "auto", {}))
    )
    assert isinstance(served.product, TranslateProduct)
    assert served.product.id == served.id is not None


@pytest.mark.parametrize(
    ("error", "broken"),
    [(ILLEGAL_ACCESS, True), (torch.OutOfMemoryError("CUDA out of memory"), False)],
)
def test_when_a_device_fails_the_cpu_translates(
    services: Services,
    pool: EncoderPool,
    translator: Translator,
    error: Exception,
    broken: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(PlacedTranslator, "apply_into", fail)
    vectors = some(9, WIDE)
    made = products.begin(services, TranslateProduct(translator, "t"), vectors).result()
    torch.testing.assert_close(made.vectors, apply(translator, vectors).vectors)
    assert pool.broken is broken
    own = OwnDevice(pool)
    assert own.pays(translator, vectors) is not broken


@pytest.mark.parametrize("device", ["host"], indirect=True)
def test_a_host_that_restarts_is_sent_the_translator_again(
    services: Services, host: ModelHost, pool: EncoderPool, translator: Translator
) -> None:
    vectors, product = some(9, WIDE), TranslateProduct(translator, "t")
    expected = products.begin(services, product, vectors).result().vectors
    host.close()
    again = ModelHost(pool, host.address, KEY, {"translate": TranslateOperation(ELSEWHERE)})
    again.start()
    made = products.begin(services, product, vectors).result().vectors
    again.close()
    assert torch.equal(made, expected)


def away(path: Path, pool: EncoderPool, answer_s: float) -> ModelHost:
    """A host that hangs for this time before it translates."""
    operation = TranslateOperation(ELSEWHERE)

    def slowly(header, payload):  # type: ignore[no-untyped-def]
        time.sleep(answer_s)
        return operation(header, payload)

    host = ModelHost(pool, HostAddress(path=str(path)), KEY, {"translate": slowly})
    host.start()
    return host


def test_a_host_that_hangs_costs_a_second_once(
    on_sqlite: Services, pool: EncoderPool, translator: Translator, tmp_path: Path
) -> None:
    host = away(tmp_path / "m", pool, answer_s=5.0)
    device = HostDevice(ModelHosts([host.address], KEY))
    services = replace(on_sqlite, translation_device=device)
    vectors, product = some(9, WIDE), TranslateProduct(translator, "t")
    started = time.monotonic()
    made = products.begin(services, product, vectors).result()
    first_s = time.monotonic() - started
    assert not device.pays(translator, vectors)  # the next ones do not wait for it
    torch.testing.assert_close(made.vectors, apply(translator, vectors).vectors)
    assert 0.9 < first_s < 4.0
    device.close()
    host.close()


def test_hosts_without_a_gpu_get_no_vectors(
    on_sqlite: Services, translator: Translator, tmp_path: Path, on_device: list[int]
) -> None:
    pool = EncoderPool(device="cpu")
    host = ModelHost(
        pool, HostAddress(path=f"{tmp_path}/m"), KEY, {"translate": TranslateOperation("cpu")}
    )
    host.start()
    device = HostDevice(ModelHosts([host.address], KEY))
    services = replace(on_sqlite, translation_device=device)
    vectors = some(9, WIDE)
    assert device.pays(translator, vectors)  # it has not answered yet
    products.begin(services, TranslateProduct(translator, "t"), vectors).result()
    assert not device.pays(translator, vectors)
    assert on_device == []
    device.close()
    host.close()
    pool.close()


def test_narrow_maps_and_float64_are_not_sent(host: ModelHost, translator: Translator) -> None:
    source = some(90, 30)
    spaces = fit_space(source), fit_space(source @ some(30, 20, 3))
    narrow = methods.fit("ridge", *spaces, methods.resolve("ridge", {}, anchors=90))
    device = HostDevice(ModelHosts([host.address], KEY))
    assert not device.pays(narrow, torch.zeros(10**5, 30))
    assert device.pays(translator, torch.zeros(100, WIDE))
    assert not device.pays(translator, torch.zeros(100, WIDE, dtype=torch.float64))
    device.close()
