"""Draws the demo's pictures with Pillow: a motif with an item's name and current price. Needs `rmq[demo]`."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from string import capwords
from textwrap import wrap
from zlib import crc32

from PIL import Image, ImageColor, ImageDraw, ImageFont, PngImagePlugin

from rmq.demo.jobs import Tier, parts_of
from rmq.demo.shop import PriceList

PRICE_LIST = "prices.sqlite"
"""Name of the price list in the folder of the pictures."""

SIZE = WIDTH, HEIGHT = 168, 126

_INK, _PALE, _PAPER = "#1f2328", "#59636e", "#ffffff"
_RIBBONS = {Tier.GOLD: "#d4a017", Tier.SILVER: "#8c959f", Tier.BRONZE: "#a0673a"}
_OURS = "item_3a_*"
"""Pattern of the pictures' file names; see `file_name`."""
_CONTENT, _PENCE = "content", "pence"
_GAP, _CAPTION, _HEADING = 12, 18, 32


@cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def draw(content: str, name: str, pence: int, tier: Tier | None = None) -> Image.Image:
    """Return the picture of an item with its price.

    Args:
        content: Content of the message: the item and, for a customer's picture, the customer.
        name: Name of the item.
        pence: Its price.
        tier: The customer's tier, for a customer's picture.
    """
    item, customer = parts_of(content)
    picture = Image.new("RGB", SIZE, _PAPER)
    pen = ImageDraw.Draw(picture)
    _motif(pen, item)
    pen.rectangle((0, 66, WIDTH, HEIGHT), fill=_PAPER)
    pen.text((8, 70), f"GBP {pence / 100:,.2f}", font=_font(23), fill=_INK)
    for number, line in enumerate(wrap(capwords(name) or item, 26)[:2]):
        pen.text((8, 98 + 13 * number), line, font=_font(10), fill=_PALE)
    if customer is not None and tier is not None:
        pen.rectangle((0, 0, WIDTH, 18), fill=_RIBBONS[tier])
        pen.text((8, 2), f"{tier.name.lower()} customer {customer}", font=_font(11), fill=_PAPER)
    pen.rectangle((0, 0, WIDTH - 1, HEIGHT - 1), outline="#d1d9e0")
    return picture


def _motif(pen: ImageDraw.ImageDraw, item: str) -> None:
    """Draw a motif in place of the item's photo, the same for the same item."""
    drawn = crc32(item.encode())
    hue = drawn % 360
    pen.rectangle((0, 0, WIDTH, 66), fill=ImageColor.getrgb(f"hsl({hue}, 45%, 88%)"))
    for number in range(4):
        drawn = crc32(drawn.to_bytes(4, "big"))
        x, y, radius = drawn % WIDTH, drawn // 256 % 60, 10 + drawn // 65_536 % 22
        colour = ImageColor.getrgb(f"hsl({(hue + 25 * number) % 360}, 50%, {60 + 7 * number}%)")
        box = (x - radius, y - radius, x + radius, y + radius)
        if drawn % 2:
            pen.ellipse(box, fill=colour)
        else:
            pen.rounded_rectangle(box, radius // 3, fill=colour)


class Renderer:
    """Draws pictures into a folder. Threads and processes may share it, if only one draws a content at a time.

    Args:
        folder: The folder; the price list is in it.
        names: Item -> name.
    """

    def __init__(self, folder: Path, names: dict[str, str]) -> None:
        self._folder, self._names = folder, names
        self._prices = PriceList(folder / PRICE_LIST)

    def render(self, content: str, tier: Tier | None = None) -> int:
        """Draw the picture of a message with the current price, and return the price in pence.

        Drawing it twice is harmless: messages may be redelivered after a crash.
        """
        item, _ = parts_of(content)
        pence = self._prices.of(item)
        words = PngImagePlugin.PngInfo()
        words.add_text(_CONTENT, content)
        words.add_text(_PENCE, str(pence))
        target = self._folder / file_name(content)
        unfinished = target.with_suffix(f".part{threading.get_ident()}")
        with unfinished.open("wb") as file:
            draw(content, self._names.get(item, ""), pence, tier).save(file, "PNG", pnginfo=words, compress_level=1)
        unfinished.replace(target)
        return pence


def file_name(content: str) -> str:
    """Return the file name of a content's picture: letters, digits and underscores."""
    return "".join(letter if letter.isalnum() else f"_{ord(letter):x}_" for letter in content) + ".png"


def clear(folder: Path) -> None:
    """Remove the pictures and price list of an earlier run from the folder."""
    for pattern in (_OURS, f"{PRICE_LIST}*"):
        for path in folder.glob(pattern):
            path.unlink()


def read_prices(folder: Path) -> dict[str, int]:
    """Return content and price in pence of each picture in the folder, from its metadata."""
    prices: dict[str, int] = {}
    for path in sorted(folder.glob(_OURS)):
        with Image.open(path) as picture:
            prices[str(picture.info[_CONTENT])] = int(picture.info[_PENCE])
    return prices


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the contact sheet.

    Attributes:
        heading: Heading of the row.
        cells: Content and caption of each picture.
    """

    heading: str
    cells: tuple[tuple[str, str], ...]


def contact_sheet(folder: Path, rows: Iterable[Row], path: Path) -> None:
    """Combine pictures of the folder into one PNG. Missing pictures are omitted."""
    kept = [
        (row.heading, cells) for row in rows if (cells := [c for c in row.cells if (folder / file_name(c[0])).exists()])
    ]
    columns = max((len(cells) for _, cells in kept), default=1)
    tops = [*accumulate((HEIGHT + _CAPTION + (_HEADING if words else _GAP) for words, _ in kept), initial=_GAP)]
    sheet = Image.new("RGB", (_GAP + columns * (WIDTH + _GAP), tops[-1] + _GAP), "#f6f8fa")
    pen = ImageDraw.Draw(sheet)
    for top, (heading, cells) in zip(tops, kept, strict=False):
        pen.text((_GAP, top + 6), heading, font=_font(15), fill=_INK)
        first = top + (_HEADING if heading else _GAP)
        for column, (content, words) in enumerate(cells):
            left = _GAP + column * (WIDTH + _GAP)
            with Image.open(folder / file_name(content)) as picture:
                sheet.paste(picture, (left, first))
            pen.text((left, first + HEIGHT + 2), words, font=_font(12), fill=_PALE)
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)
