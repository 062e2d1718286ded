"""One rule for images: colours, alpha, palettes, sizes, and what cannot be read."""

import itertools
import struct
import zlib

import numpy as np
import pytest
from image_files import encoded
from PIL import Image

from shoal.data.images import Rule, decode_images, fitted, read_image
from shoal.errors import ConfigError, DataError

RNG = np.random.default_rng(3)
GREY = RNG.integers(0, 256, (4, 5), dtype=np.uint8)
COLOUR = RNG.integers(0, 256, (4, 5, 3), dtype=np.uint8)


def rule(channels=None, size=None, fit="resize", unreadable="error"):
    return Rule.of(channels, size, fit, unreadable)


def decode(files, how=None):
    return decode_images(lambda: ((f"row {i}", f) for i, f in enumerate(files)), len(files), how or rule(), "here")


def pixels(*files, how=None):
    return decode(files, how).pixels


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def deep_png(colour: int, channels: int) -> bytes:
    """A PNG of 1x2 pixels with 16 bits per channel, by hand: pillow writes none in colour."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 2, 1, 16, colour, 0, 0, 0))
    data = chunk(b"IDAT", zlib.compress(b"\0" + bytes(range(4 * channels))))
    return b"\x89PNG\r\n\x1a\n" + head + data + chunk(b"IEND", b"")


def test_colours_become_grey_by_luma():
    # (299 R + 587 G + 114 B) / 1000, to the nearest whole number, worked out by hand.
    colours = [[200, 100, 50], [255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255], [0, 0, 0]]
    found = pixels(encoded(np.array([colours], dtype=np.uint8)), how=rule(channels=1))
    assert found.shape == (1, 1, 6, 1)
    assert found.flatten().tolist() == [124, 76, 150, 29, 255, 0]


def test_grey_is_repeated_and_the_null_rule_takes_what_is_there():
    grey, colour = encoded(GREY), encoded(COLOUR)
    assert pixels(grey, how=rule(channels=3)).tolist() == [np.repeat(GREY[..., None], 3, axis=2).tolist()]
    assert pixels(grey, grey).shape == (2, 4, 5, 1)
    assert pixels(grey, colour).shape == (2, 4, 5, 3)
    assert np.array_equal(pixels(colour, grey)[0], COLOUR)
    assert pixels(grey, colour, how=rule(channels=1)).shape == (2, 4, 5, 1)
    bits = Image.fromarray(GREY).convert("1")
    assert np.array_equal(pixels(encoded(bits))[0, ..., 0], np.asarray(bits) * 255)


def test_alpha_is_dropped_and_not_blended():
    alpha = Image.fromarray(RNG.integers(0, 2, (4, 5), dtype=np.uint8) * 200)
    image = Image.fromarray(COLOUR)
    image.putalpha(alpha)
    assert np.array_equal(pixels(encoded(image))[0], COLOUR)
    grey = Image.merge("LA", [Image.fromarray(GREY), alpha])
    assert np.array_equal(pixels(encoded(grey))[0, ..., 0], GREY)


@pytest.mark.parametrize("transparency", [None, 1, bytes([0, 128, 255])])
def test_a_palette_is_looked_up_and_counts_as_colour(transparency):
    codes = np.array([[0, 1, 2], [2, 1, 0]], dtype=np.uint8)
    image = Image.fromarray(codes)
    image.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90])
    how = {} if transparency is None else {"transparency": transparency}
    colours = np.array([[10, 20, 30], [40, 50, 60], [70, 80, 90]])
    assert np.array_equal(pixels(encoded(image, **how))[0], colours[codes])
    image.putpalette([7, 7, 7, 99, 99, 99, 200, 200, 200])
    assert pixels(encoded(image, **how)).shape == (1, 2, 3, 3)
    found = pixels(encoded(image, **how), how=rule(channels=1))
    assert np.array_equal(found[0, ..., 0], np.array([7, 99, 200])[codes])


@pytest.mark.parametrize(("height", "width"), [(4, 5), (5, 5), (5, 6), (6, 8), (7, 9), (4, 10)])
def test_pads_are_even_or_larger_at_the_bottom_and_right(height, width):
    for image in (GREY, COLOUR):
        (found,) = pixels(encoded(image), how=rule(size=(height, width), fit="pad"))
        top, left = (height - 4) // 2, (width - 5) // 2
        expected = np.zeros((height, width, found.shape[2]), dtype=np.uint8)
        expected[top : top + 4, left : left + 5] = image if image.ndim == 3 else image[..., None]
        assert np.array_equal(found, expected)


def test_padding_brings_different_sizes_together_and_never_cuts():
    small, wide = encoded(GREY[:1, :1]), encoded(GREY)
    found = pixels(small, wide, how=rule(size=(5, 5), fit="pad"))
    assert int(found[0].sum()) == int(GREY[0, 0]) == int(found[0, 2, 2, 0])
    with pytest.raises(DataError, match=r"here, row 1: 4x5 pixels do not fit into 4x4; use fit: resize"):
        pixels(small, wide, how=rule(size=4, fit="pad"))
    with pytest.raises(DataError, match=r"row 0: 4x5 pixels do not fit into 3x9"):
        pixels(wide, how=rule(size=(3, 9), fit="pad"))
    with pytest.raises(ConfigError, match=r"data\.fit: pad needs a size"):
        rule(fit="pad")


def test_resizing_to_height_and_width():
    left = np.zeros((8, 12), dtype=np.uint8)
    left[:, 6:] = 200
    (found,) = pixels(encoded(left), how=rule(size=(2, 6)))
    assert found.shape == (2, 6, 1)
    assert found[:, [0, -1], 0].tolist() == [[0, 200], [0, 200]]
    flat = np.full((3, 3, 3), [10, 200, 30], dtype=np.uint8)
    assert np.unique(pixels(encoded(flat), how=rule(size=7)).reshape(-1, 3), axis=0).tolist() == [[10, 200, 30]]
    with pytest.raises(DataError, match=r"row 1: 4x5 pixels, but row 0 has 8x12; set data\.size"):
        pixels(encoded(left), encoded(GREY))


def test_unreadable_images_are_named_or_left_out():
    good, bad, cut = encoded(GREY), b"not an image", encoded(GREY)[:-30]
    for broken in (bad, cut, None, b""):
        with pytest.raises(DataError, match=r"here, row 1: no image .*data\.unreadable: skip"):
            decode([good, broken])
    found = decode([bad, good, cut, good, None], rule(unreadable="skip"))
    assert found.pixels.shape == (2, 4, 5, 1)
    assert found.kept.tolist() == [1, 3]
    assert found.notes == ("3 of 5 images cannot be read and are left out: row 0, row 2, row 4",)
    (note,) = decode([good, *[bad] * 12], rule(unreadable="skip")).notes
    assert note.startswith("12 of 13 images")
    assert note.endswith("row 9, row 10 and 2 more")
    with pytest.raises(DataError, match="none of 2 images can be read; the first: here, row 0"):
        decode([bad, cut], rule(unreadable="skip"))


def test_a_broken_image_in_colour_does_not_make_grey_ones_coloured():
    noise = RNG.integers(0, 256, (40, 40, 3), dtype=np.uint8)
    found = decode([encoded(GREY), encoded(noise)[:-2000]], rule(unreadable="skip"))
    assert found.pixels.shape == (1, 4, 5, 1)


@pytest.mark.parametrize("unreadable", ["error", "skip"])
def test_more_than_8_bits_are_an_error_whatever_the_rule(unreadable):
    deep = [
        encoded(np.full((2, 2), 40000, dtype=np.uint16)),
        encoded(np.full((2, 2), 40000, dtype=np.uint16), "TIFF"),
        encoded(np.full((2, 2), 0.5, dtype=np.float32), "TIFF"),
        *(deep_png(colour, channels) for colour, channels in ((0, 1), (2, 3), (4, 2), (6, 4))),
        b"P6 2 1 65535\n" + bytes(range(12)),
        b"P5 2 1 1000\n" + bytes(range(4)),
    ]
    for file in deep:
        with pytest.raises(DataError, match=r"row 1: pixels of more than 8 bits"):
            decode([encoded(GREY), file], rule(unreadable=unreadable))
    assert pixels(b"P6 2 1 255\n" + bytes(range(6))).flatten().tolist() == list(range(6))


def test_the_orientation_of_exif_is_followed():
    turned = {1: lambda x: x, 3: lambda x: np.rot90(x, 2), 6: lambda x: np.rot90(x, -1), 8: np.rot90, 2: np.fliplr}
    for value, turn in turned.items():
        exif = Image.Exif()
        exif[0x0112] = value
        found = pixels(encoded(COLOUR, exif=exif))
        assert np.array_equal(found[0], turn(COLOUR)), value
    assert np.array_equal(pixels(encoded(COLOUR, exif=b"Exif\0\0nonsense"))[0], COLOUR)


def test_the_first_frame_of_an_animation_counts():
    frames = [Image.fromarray(np.full((3, 3), v, dtype=np.uint8)) for v in (50, 250)]
    file = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert np.unique(pixels(file)).tolist() == [50]


def test_formats_that_start_other_programs_are_not_opened():
    with pytest.raises(DataError, match="no image that pillow can read"):
        pixels(encoded(COLOUR, "EPS"))


RULES = [
    rule(),
    rule(channels=1),
    rule(channels=3, size=7),
    rule(size=(6, 9), fit="pad"),
    rule(channels=1, size=(3, 4)),
]


@pytest.mark.parametrize("how", RULES, ids=range(len(RULES)))
def test_a_further_image_is_read_like_the_rows(how, tmp_path):
    for kind in (GREY, COLOUR):
        file = encoded(kind)
        found = pixels(file, how=how)
        reader = how.reader(found)
        assert reader["kind"] == "image"
        assert reader["fit"] == (how.fit if how.size else None)
        assert [*reader["size"], reader["channels"]] == list(found.shape[1:])
        path = tmp_path / "image.png"
        path.write_bytes(file)
        for data in (file, path, str(path)):
            assert np.array_equal(read_image(data, reader, "it"), found[0])


def test_further_images_of_another_size():
    reader = {"kind": "image", "size": [4, 5], "channels": 1, "fit": None}
    with pytest.raises(DataError, match=r"it: 5x4 pixels, but the data set has 4x5 and was read without data\.size"):
        read_image(encoded(GREY.T.copy()), reader, "it")
    assert read_image(encoded(GREY.T.copy()), {**reader, "fit": "resize"}, "it").shape == (4, 5, 1)
    with pytest.raises(DataError, match="it: 5x4 pixels do not fit into 4x5"):
        read_image(encoded(GREY.T.copy()), {**reader, "fit": "pad"}, "it")
    with pytest.raises(DataError, match="it: no image that pillow can read"):
        read_image(b"no", reader, "it")
    with pytest.raises(DataError, match=r"it: .*No such file"):
        read_image("/nowhere/at all.png", reader, "it")
    # Colours are brought to a data set's grey only where its rule did that; grey is always repeated.
    with pytest.raises(DataError, match=r"it: an image with colours, but all images of the data set are grey"):
        read_image(encoded(COLOUR), reader, "it")
    assert read_image(encoded(COLOUR), {**reader, "convert": True}, "it").shape == (4, 5, 1)
    assert read_image(encoded(GREY), {**reader, "channels": 3}, "it").shape == (4, 5, 3)


def test_decoded_arrays_follow_the_same_rule():
    for array, how in itertools.product((GREY[..., None], COLOUR), RULES):
        file = encoded(array[..., 0] if array.shape[2] == 1 else array)
        assert np.array_equal(fitted(array[None], how, "here"), pixels(file, how=how))
    stack = np.stack([COLOUR, COLOUR])
    assert fitted(stack, rule(), "here") is stack
    assert fitted(stack[:0], rule(channels=1, size=9), "here").shape == (0, 9, 9, 1)
    assert fitted(stack[..., :2], rule(), "here").shape == (2, 4, 5, 2)
    with pytest.raises(DataError, match="here: images of 2 channels"):
        fitted(stack[..., :2], rule(channels=1), "here")
