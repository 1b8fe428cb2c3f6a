"""The folder of the demo's pictures: cleared at the start, checked and put on a contact sheet at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rmq.demo.drawn import Drawn
from rmq.demo.handled import Handled
from rmq.demo.jobs import Minute, Tier, newest_prices, opening_prices
from rmq.demo.orders import OrderLine
from rmq.demo.shop import PriceList
from rmq.errors import RmqError

if TYPE_CHECKING:
    from rmq.demo import pictures

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
        RmqError: Pillow is not installed, or the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from rmq.demo import pictures as drawing
        except ModuleNotFoundError as error:
            raise RmqError(f"drawing pictures needs the package Pillow ({error}): pip install 'rmq[demo]'") from None
        self._drawing = drawing
        self.sheet = folder / SHEET
        self.pictures = folder / "pictures"
        try:
            self.pictures.mkdir(parents=True, exist_ok=True)
            drawing.clear(self.pictures)
        except OSError as error:
            raise RmqError(f"cannot write pictures to folder {str(folder)!r}: {error}") from error
        self.prices = PriceList(self.pictures / drawing.PRICE_LIST)

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
        prices = self._drawing.read_prices(self.pictures)
        drawn = Drawn(self.pictures, self.sheet, prices, newest_prices(orders), asked, names)
        renders = Counter(record.content for record in records if record.pictured)
        self._drawing.contact_sheet(self.pictures, self._rows(drawn, records, renders), self.sheet)
        return drawn

    def _rows(self, drawn: Drawn, records: Sequence[Handled], renders: Counter[str]) -> list[pictures.Row]:
        def row(heading: str, contents: Sequence[str]) -> pictures.Row:
            cells = tuple((each, f"{drawn.asked[each]} new prices, drawn {renders[each]} times") for each in contents)
            return self._drawing.Row(heading, cells)

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
