"""The demo's pictures, drawn with Pillow: a motif with an item's name and current price. Needs `rmq[demo]`.

`PriceList` has the prices that a `Renderer` draws; a `Gallery` is the folder of the pictures, which is cleared at the
start, and read and put on a contact sheet at the end.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from string import capwords
from textwrap import wrap
from zlib import crc32

from PIL import Image, ImageColor, ImageDraw, ImageFont, PngImagePlugin

from rmq.demo.jobs import Minute, Tier, newest_prices, opening_prices, parts_of
from rmq.demo.orders import OrderLine
from rmq.demo.summary import Drawn, Handled
from rmq.errors import RmqError


class PriceList:
    """The newest price of each item, in pence, in an SQLite file that several processes may open.

    Args:
        path: The file, created if missing.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = OFF")
        self._connection.execute("CREATE TABLE IF NOT EXISTS prices (item TEXT PRIMARY KEY, pence INTEGER NOT NULL)")

    def write(self, prices: Mapping[str, int]) -> None:
        """Store new prices. All renderers see them when it returns."""
        with self._lock, self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany("INSERT OR REPLACE INTO prices VALUES (?, ?)", prices.items())

    def of(self, item: str) -> int:
        """Return the current price of an item.

        Raises:
            LookupError: The price list has no price of the item.
        """
        with self._lock, closing(self._connection.execute("SELECT pence FROM prices WHERE item = ?", (item,))) as rows:
            row = rows.fetchone()
        if row is None:
            raise LookupError(f"the price list has no item {item!r}")
        return row[0]

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


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


SHEET = "contact-sheet.png"
COLUMNS = 6
ITEM_ROWS = 3


class Gallery:
    """The pictures of a run.

    Args:
        folder: Folder of the contact sheet, with the pictures in a subfolder.

    Attributes:
        pictures: Folder of the pictures.
        prices: The price list that the renderers read.
        sheet: The contact sheet.

    Raises:
        RmqError: The folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.sheet = folder / SHEET
        self.pictures = folder / "pictures"
        try:
            self.pictures.mkdir(parents=True, exist_ok=True)
            clear(self.pictures)
        except OSError as error:
            raise RmqError(f"cannot write pictures to folder {str(folder)!r}: {error}") from error
        self.prices = PriceList(self.pictures / PRICE_LIST)

    def open_shop(self, orders: Sequence[OrderLine]) -> None:
        """Write the opening prices."""
        self.prices.write(opening_prices(orders))

    def close(self) -> None:
        """Close the price list."""
        self.prices.close()

    def finish(self, orders: Sequence[OrderLine], day: Sequence[Minute], records: Sequence[Handled]) -> Drawn:
        """Read the pictures, and write the contact sheet."""
        asked: Counter[str] = Counter(f"item:{item}" for minute in day for item in minute.repriced)
        asked.update(picture.content for minute in day for picture in minute.pictures)
        names = {line.item: line.name for line in orders if line.name}
        prices = read_prices(self.pictures)
        drawn = Drawn(self.pictures, self.sheet, prices, newest_prices(orders), asked, names)
        renders = Counter(record.content for record in records if record.pictured)
        contact_sheet(self.pictures, self._rows(drawn, records, renders), self.sheet)
        return drawn

    def _rows(self, drawn: Drawn, records: Sequence[Handled], renders: Counter[str]) -> list[Row]:
        def row(heading: str, contents: Sequence[str]) -> Row:
            cells = tuple((each, f"{drawn.asked[each]} new prices, drawn {renders[each]} times") for each in contents)
            return Row(heading, cells)

        items = drawn.most_asked(records, ITEM_ROWS * COLUMNS)
        rows = [
            row(
                "" if start else "Items with the most price changes: each shows the newest price",
                items[start : start + COLUMNS],
            )
            for start in range(0, len(items), COLUMNS)
        ]
        for tier in reversed(Tier):
            count = sum(each.pictured for each in records if each.tier == tier.name)
            heading = f"For {tier.name.lower()} customers, priority {tier.value:,}: {count:,} pictures drawn"
            rows.append(row(heading, drawn.most_asked(records, COLUMNS, tier)))
        return rows
