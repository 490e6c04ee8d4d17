"""Image files: accepted formats, their pixels, and hostile files."""

from __future__ import annotations

import struct
import time
import zlib
from io import BytesIO

import numpy as np
import pytest

from app.encoders.models import images
from app.encoders.models.images import decode_image, open_image
from app.errors import ImageTooLarge, InvalidImage

Image = pytest.importorskip("PIL.Image")

RNG = np.random.default_rng(0)
#: smooth enough for lossy formats, and different in each corner
PIXELS = np.stack(
    np.broadcast_arrays(np.arange(64) * 3, np.arange(48)[:, None] * 5, 90), axis=2
).astype(np.uint8)
PICTURE = Image.fromarray(PIXELS)


def encoded(picture, kind="PNG", **options) -> bytes:
    file = BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def chunk(name: bytes, content: bytes) -> bytes:
    length, check = (struct.pack(">I", each) for each in (len(content), zlib.crc32(name + content)))
    return length + name + content + check


def ihdr(width: int, height: int) -> bytes:
    return chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))


def png(width: int, height: int, *, extra: bytes = b"", body: bytes = b"\0" * 1000) -> bytes:
    data = chunk(b"IDAT", zlib.compress(body)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + ihdr(width, height) + extra + data


def read(data: bytes):
    return decode_image(open_image(data))


def pixels(data: bytes) -> np.ndarray:
    picture = read(data)
    assert picture.mode == "RGB"
    return np.asarray(picture).astype(int)


# Accepted files


def test_transparent_pixels_are_white():
    alpha = np.zeros((48, 64), np.uint8)
    alpha[:24] = 255
    alpha[24:36] = 128
    picture = PICTURE.copy()
    picture.putalpha(Image.fromarray(alpha))
    weight = alpha[..., None] / 255
    expected = PIXELS * weight + 255 * (1 - weight)
    for kind, options in [("PNG", {}), ("WEBP", {"lossless": True, "exact": True})]:
        assert np.abs(pixels(encoded(picture, kind, **options)) - expected).max() <= 1


def test_sixteen_bits_are_not_clipped_at_255():
    values = np.array([[0, 255, 256, 30_000, 65_535]], np.uint16)
    expected = [[[each] * 3 for each in (0, 0, 1, 117, 255)]]
    assert pixels(encoded(Image.fromarray(values))).tolist() == expected


@pytest.mark.parametrize(("kind", "orientation"), [("JPEG", 6), ("PNG", 3), ("WEBP", 5)])
def test_photographs_stand_upright(kind, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    found = pixels(encoded(PICTURE, kind, exif=exif, quality=95, lossless=True))
    turned = {6: np.rot90(PIXELS, -1), 3: np.rot90(PIXELS, 2), 5: PIXELS.transpose(1, 0, 2)}
    assert np.abs(found - turned[orientation]).max() <= 8


@pytest.mark.parametrize(
    "exif", [b"Exif\0\0garbage of some length", b"Exif\0\0II*\0\x08\0\0\0\xff\xff"]
)
@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_unreadable_exif_data_is_ignored(exif):
    assert np.abs(pixels(encoded(PICTURE, "JPEG", exif=exif, quality=95)) - PIXELS).max() <= 8


# Rejected files


NO_IMAGES = [b"", b"text", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%PDF-1.7\n"]
NO_IMAGES += [b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", b"RIFF\0\0\0\0WAVEfmt "]
NO_IMAGES += [encoded(PICTURE, kind) for kind in ("TIFF", "BMP", "ICO", "PPM")]


@pytest.mark.parametrize("data", NO_IMAGES, ids=lambda data: repr(data[:8]))
def test_other_files_are_rejected(data):
    with pytest.raises(InvalidImage):
        read(data)


GOOD = {
    "PNG": encoded(PICTURE),
    "JPEG": encoded(PICTURE, "JPEG"),
    "progressive": encoded(PICTURE, "JPEG", progressive=True),
    "WEBP": encoded(PICTURE, "WEBP"),
    "lossless": encoded(PICTURE, "WEBP", lossless=True),
    "GIF": encoded(PICTURE.quantize(64), "GIF"),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_truncated_file_is_rejected_wherever_it_ends(name):
    data = GOOD[name]
    for length in [*range(40), *range(40, len(data) * 9 // 10, 37)]:
        with pytest.raises(InvalidImage):
            read(data[:length])


def gif_of(size, frame) -> bytes:
    """A GIF whose screen and image have different sizes."""
    data = bytearray(GOOD["GIF"])
    data[6:10] = struct.pack("<HH", *size)
    place = data.index(b",\0\0\0\0" + struct.pack("<HH", 64, 48))
    data[place + 5 : place + 9] = struct.pack("<HH", *frame)
    return bytes(data)


BOMBS = {
    "png": png(30_000, 30_000),
    "frame larger than the screen": gif_of((1, 1), (65_535, 65_535)),
    "second header": png(9, 9, extra=ihdr(20_000, 20_000), body=b"\0" * 90),
    "webp canvas": b"RIFF\0\0\1\0WEBPVP8X\x0a\0\0\0\2\0\0\0" + b"\xff\xff\xff" * 2 + b"\0" * 100,
}


@pytest.mark.parametrize("name", BOMBS)
def test_too_many_pixels_are_refused_before_they_take_memory(name):
    start = time.process_time()
    with pytest.raises(ImageTooLarge) as caught:
        read(BOMBS[name])
    assert time.process_time() - start < 0.5  # gigabytes of pixels would take longer
    assert caught.value.limit == images.MAX_IMAGE_PIXELS


@pytest.mark.parametrize(
    ("limit", "most", "says"),
    [
        ("MAX_IMAGE_BYTES", len(GOOD["PNG"]), "bytes"),
        ("MAX_IMAGE_PIXELS", 64 * 48, "64 x 48 pixels"),
    ],
)
def test_the_file_and_the_pixels_have_limits(monkeypatch, limit, most, says):
    monkeypatch.setattr(images, limit, most)
    assert read(GOOD["PNG"]).size == (64, 48)
    monkeypatch.setattr(images, limit, most - 1)
    with pytest.raises(ImageTooLarge, match=says) as caught:
        read(GOOD["PNG"])
    assert caught.value.limit == most - 1


@pytest.mark.parametrize("data", [png(0, 5), gif_of((0, 0), (0, 0)), gif_of((9, 9), (0, 9))])
def test_an_image_without_pixels_is_refused(data):
    with pytest.raises(InvalidImage):
        read(data)


MANY, SCAN = 500_000, GOOD["progressive"].rindex(b"\xff\xda")
IN_PIECES = {
    "chunks": png(9, 9, extra=chunk(b"IDAT", b"") * MANY),
    "segments": GOOD["JPEG"][:2] + b"\xff\xec\0\2" * MANY + GOOD["JPEG"][2:],
    "scans": GOOD["progressive"][:SCAN] + GOOD["progressive"][SCAN:-2] * 1000 + b"\xff\xd9",
}


@pytest.mark.parametrize("data", IN_PIECES.values(), ids=IN_PIECES)
def test_a_file_of_very_many_pieces_is_rejected_in_time(data):
    start = time.process_time()
    with pytest.raises(InvalidImage, match="more than"):
        read(data)
    assert time.process_time() - start < 1
