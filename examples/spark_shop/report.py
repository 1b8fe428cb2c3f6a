"""Prints the reports of the sample applications as tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from spark_shop.audience import AudienceReport
from spark_shop.prices import PriceReport


def show_prices(report: PriceReport) -> None:
    """Print a report: rows folded by Spark, messages merged by Redis, and the tiers."""
    print(f"{report.lines:,} order lines, {report.without_price:,} of them without a price\n")
    rows = [
        (sent.topic, sent.messages, sent.folded, sent.merged, sent.new, f"{sent.saved:.1%}", f"{sent.elapsed_s:.1f}")
        for sent in (report.pictures, report.contacts)
    ]
    _table(("topic", "asked", "folded", "merged", "new", "saved", "seconds"), rows)
    print("\nfolded in Spark before sending, merged with the backlog in Redis")
    changes = report.pictures.messages
    if changes:
        saved = f"{1 - report.windows / changes:.1%}"
        print(f"sent change by change: {report.windows:,} pictures of {changes:,}, {saved} saved")
    print()
    tiers = [(tier.tier.lower(), tier.priority, tier.customers, tier.turnover) for tier in report.tiers]
    _table(("tier", "priority", "customers", "turnover"), tiers)


def show_audience(report: AudienceReport, rules: Mapping[str, str]) -> None:
    """Print a report: changes, segments, and the results of the checks."""
    if report.sent:
        counted = [*report.sent.items(), ("all", report.total)]
        rows = [(name, each.rows, each.folded, each.merged, each.new) for name, each in counted]
        _table(("changes of", "read", "folded in Spark", "merged in Redis", "to evaluate"), rows)
        nobody = f"{report.without_customer:,} of {report.lines:,} lines name no customer."
        print(f"{report.merged_share:.2%} of the changes merged. {nobody}\n")
    shares = [
        (name, members, f"{members / report.customers if report.customers else 0.0:.1%}", rules[name])
        for name, members in report.members.items()
    ]
    _table(("segment", "customers", "share", "rule"), shares)
    print(f"{report.customers:,} customers in all.\n")
    for kept, words in _checks(report):
        print("kept  " if kept else "BROKEN", words)
    print(
        f"\n{report.evaluated:,} evaluations in {report.batches:,} batches, {report.elapsed_s:.1f} s in all; "
        f"{report.left:,} messages left in the topic."
    )
    if report.died:
        print(f"{report.died:,} messages died without an evaluation; `rmq dead list` shows the errors")
    if report.passed_over:
        print(f"skipped {report.passed_over:,} messages that named no customer")


def _checks(report: AudienceReport) -> list[tuple[bool, str]]:
    wrong = report.disorder
    held = f"one at a time: evaluated while another consumer held the customer: {wrong.overlaps:,}"
    checks = [
        (not wrong.doubled, f"no duplicates: customers twice in a batch: {wrong.doubled:,}"),
        (not wrong.overlaps, held),
    ]
    if report.rival:
        words = f"up to date: of {report.rival:,} that the rival changed, not evaluated again: {wrong.outdated:,}"
        checks.append((not wrong.outdated, words))
    if report.expired:
        checks.append((True, f"leases that expired during the run: {report.expired:,}"))
    return checks


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under their heads: numbers with separators and to the right, as are all columns but the first."""
    cells = [heads, *([f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for first, *rest in cells:
        line = "   ".join(cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))
        print(f"{first.ljust(widths[0])}   {line}")
