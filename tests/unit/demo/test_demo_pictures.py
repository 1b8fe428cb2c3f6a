"""The demo's pictures: they show the price that holds, and the judgement sees an old, a missing and a needless one."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from rmq.demo import pictures, show
from rmq.demo.jobs import CUSTOMER_PICTURE, PRICE_PICTURE, Tier, newest_prices, opening_prices, parts_of, plan
from rmq.demo.orders import OrderLine, read_orders
from rmq.demo.pictures import COLUMNS, ITEM_ROWS, Gallery, PriceList
from rmq.demo.summary import Account, Drawn, Handled, Run, claims_by_tier, out_of_turn, saving
from rmq.errors import RmqError

ITEM, CUSTOMERS = "item:1", "item:1 customer:2"
RECORD = Handled(PRICE_PICTURE.name, ITEM, True, 10.0, 10.2, 5, False, None, price=199)
GOLD = Handled(CUSTOMER_PICTURE.name, CUSTOMERS, True, 12.0, 12.1, 7, False, "GOLD", claim="0:5", price=199)
ACCOUNT = Account(PRICE_PICTURE.name, 4, 3, 1, 0, 1, 0, 0, backlog=0, due=0, in_flight=0, waiting=0, found=0)
GOLDS = replace(ACCOUNT, topic=CUSTOMER_PICTURE.name, accepted=1, merged=0)
DRAWN = Drawn(Path("p"), Path("p/sheet.png"), {ITEM: 199, CUSTOMERS: 199}, {"1": 199}, {ITEM: 4, CUSTOMERS: 1}, {})
RUN = Run(20.0, 22.0, 9, (ACCOUNT, GOLDS), (RECORD, GOLD), {}, (), takings={}, drawn=DRAWN)


def broken(run: Run) -> set[str]:
    return {check.name for check in run.checks() if not check.kept}


def renderer(folder: Path, **prices: int) -> pictures.Renderer:
    listed = PriceList(folder / pictures.PRICE_LIST)
    listed.write(prices)
    listed.close()
    return pictures.Renderer(folder, {"mug": "BLUE MUG"})


def test_a_picture_shows_the_price_that_holds_when_it_is_drawn(tmp_path: Path) -> None:
    draw = renderer(tmp_path, mug=250).render
    assert draw("item:mug") == 250
    prices = PriceList(tmp_path / pictures.PRICE_LIST)
    prices.write({"mug": 1_199})
    assert draw("item:mug customer:9", Tier.GOLD) == 1_199
    assert pictures.read_prices(tmp_path) == {"item:mug": 250, "item:mug customer:9": 1_199}
    assert draw("item:mug") == 1_199
    assert set(pictures.read_prices(tmp_path).values()) == {1_199}
    assert not list(tmp_path.glob("*.part*"))
    with pytest.raises(LookupError, match="'cup'"):
        draw("item:cup")
    with Image.open(tmp_path / pictures.file_name("item:mug")) as picture:
        assert picture.size == pictures.SIZE
    prices.close()


def test_pictures_of_different_prices_and_tiers_differ() -> None:
    looks = {
        pictures.draw(content, "mug", pence, tier).tobytes()
        for content, pence, tier in (
            (ITEM, 199, None),
            (ITEM, 200, None),
            ("item:2", 199, None),
            *((CUSTOMERS, 199, tier) for tier in Tier),
        )
    }
    assert len(looks) == 6
    assert pictures.draw(ITEM, "", 1).tobytes() == pictures.draw(ITEM, "", 1).tobytes()


def test_file_names_are_plain_and_differ() -> None:
    names = {pictures.file_name(content) for content in ("item:a", "item:a/../b", "item:a customer:1", "item:a_b")}
    assert len(names) == 4
    assert all(name.removesuffix(".png").replace("_", "").isalnum() for name in names)


def test_only_our_own_files_are_removed(tmp_path: Path) -> None:
    renderer(tmp_path, mug=250).render("item:mug")
    kept = tmp_path / "holiday.png"
    kept.write_bytes(b"mine")
    pictures.clear(tmp_path)
    assert list(tmp_path.iterdir()) == [kept]


def test_the_contact_sheet_has_a_place_for_each_picture(tmp_path: Path) -> None:
    draw = renderer(tmp_path, mug=250, cup=90).render
    draw("item:mug")
    draw("item:cup")
    pictures.contact_sheet(
        tmp_path,
        [
            pictures.Row("both", (("item:mug", "2 prices"), ("item:cup", "1 price"), ("item:lost", "none"))),
            pictures.Row("nothing", (("item:lost", "none"),)),
        ],
        tmp_path / "sheets" / "all.png",
    )
    with Image.open(tmp_path / "sheets" / "all.png") as sheet:
        assert sheet.width > 2 * pictures.WIDTH
        assert pictures.HEIGHT < sheet.height < 2 * pictures.HEIGHT
    pictures.contact_sheet(tmp_path, [], tmp_path / "empty.png")
    assert (tmp_path / "empty.png").exists()


def test_the_gallery_judges_what_the_files_show(tmp_path: Path) -> None:
    nine = datetime(2011, 12, 8, 9)
    orders = [
        OrderLine(str(number), "mug", 1, nine, Decimal(price), "7", "BLUE MUG")
        for number, price in enumerate(("2.00", "2.50", "3.00"))
    ]
    gallery = Gallery(tmp_path)
    gallery.open_shop(orders)
    draw = pictures.Renderer(gallery.pictures, {}).render
    for content, tier in (("item:mug", None), ("item:mug customer:7", Tier.BRONZE)):
        draw(content, tier)
    records = [replace(RECORD, content="item:mug"), replace(GOLD, content="item:mug customer:7", tier="BRONZE")]
    first = gallery.finish(orders, plan(orders), records)
    assert first.old() == ["item:mug", "item:mug customer:7"]
    gallery.prices.write(newest_prices(orders))
    draw("item:mug")
    last = gallery.finish(orders, plan(orders), records)
    assert last.old() == ["item:mug customer:7"]
    assert last.asked == {"item:mug": 2, "item:mug customer:7": 2}
    assert last.most_asked(records, 5) == ["item:mug"]
    assert last.most_asked(records, 5, Tier.BRONZE) == ["item:mug customer:7"]
    assert last.most_asked(records, 5, Tier.GOLD) == []
    assert last.sheet.exists()
    gallery.close()


def test_without_pillow_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.delitem(sys.modules, "rmq.demo.pictures")
    monkeypatch.delattr("rmq.demo.pictures")
    with pytest.raises(RmqError, match=r"pip install 'rmq\[demo\]'"):
        show.run(pictures=tmp_path)


def test_a_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("mine")
    with pytest.raises(RmqError, match="file"):
        Gallery(blocked)


def test_prices_of_the_morning_and_of_the_evening() -> None:
    lines = read_orders()
    morning, evening = opening_prices(lines), newest_prices(lines)
    assert morning.keys() == evening.keys()
    changed = {item for minute in plan(lines) for item in minute.repriced}
    assert {item for item in morning if morning[item] != evening[item]} <= changed
    played = dict(morning)
    for minute in plan(lines):
        assert minute.prices.keys() == set(minute.repriced)
        played |= minute.prices
    assert played == evening


def test_parts_of_a_content() -> None:
    assert parts_of("item:85099B") == ("85099B", None)
    assert parts_of("item:BANK CHARGES customer:12") == ("BANK CHARGES", "12")


def test_a_run_with_pictures_in_order() -> None:
    assert broken(RUN) == set()
    saved, _ = RUN.savings()
    assert (saved.asked, saved.drawn, saved.saved) == (4, 1, 3)
    assert saved.saved_s == pytest.approx(0.6)
    assert saving("t", 0, 0, []).saved_s == 0
    assert RUN.to_json()["pictures"][PRICE_PICTURE.name]["saved"] == 3
    assert replace(RUN, drawn=None).savings() == []
    assert ITEM_ROWS * COLUMNS > 0


def test_an_old_a_missing_and_a_needless_picture_are_seen() -> None:
    def with_drawn(**changes: object) -> Run:
        return replace(RUN, drawn=replace(DRAWN, **changes))  # pyright: ignore[reportArgumentType]

    assert broken(with_drawn(prices={ITEM: 150, CUSTOMERS: 199})) == {"newest price"}
    assert broken(with_drawn(newest={})) == {"newest price"}
    assert broken(with_drawn(prices={ITEM: 199})) == {"pictures"}
    assert broken(with_drawn(prices={ITEM: 199, CUSTOMERS: 199, "item:1 customer:3": 199})) == {"pictures"}
    twice = replace(RECORD, started_s=13.0, ended_s=13.5)
    assert broken(replace(RUN, records=(RECORD, twice, GOLD))) == {"pictures"}
    assert broken(replace(RUN, records=(replace(RECORD, price=None), GOLD))) == {"pictures"}


def test_a_smaller_customer_before_a_larger_one_of_the_same_claim_is_seen() -> None:
    bronze = replace(GOLD, content="item:1 customer:3", tier="BRONZE", started_s=11.0, ended_s=11.5)
    plain = replace(RUN, drawn=None)
    assert broken(replace(plain, records=(GOLD, bronze))) == {"tiers"}
    assert broken(replace(plain, records=(GOLD, replace(bronze, started_s=13.0, ended_s=14.0)))) == set()
    assert broken(replace(plain, records=(GOLD, replace(bronze, claim="1:5")))) == set()
    assert broken(replace(plain, records=(GOLD, replace(bronze, attempt=2)))) == set()
    assert [*claims_by_tier([bronze, GOLD])] == [[Tier.BRONZE, Tier.GOLD]]
    assert out_of_turn([[Tier.GOLD, Tier.SILVER, Tier.BRONZE], [Tier.SILVER, Tier.SILVER]]) == 0


def test_the_summary_shows_prices_savings_and_the_contact_sheet() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(show.summary(RUN))
    text = console.export_text()
    assert "GBP 1.99" in text
    assert "after 4 new prices" in text
    assert "0.6 s" in text
    assert str(DRAWN.sheet) in text
    assert max(map(len, text.splitlines())) <= 80
