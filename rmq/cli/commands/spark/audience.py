"""`rmq spark audience`: assigns customers to segments, and reassigns those that change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from rmq._model.display import counted
from rmq._model.times import typed_duration_ms
from rmq._processes.signals import until_signal
from rmq.cli.commands.spark.session import LOCAL, Master, needs_spark, spark_running
from rmq.cli.console import FAILED, Session, cut, new_table
from rmq.cli.options import ZooKeeperCa, ZooKeeperCert, ZooKeeperKey, ZooKeeperUser
from rmq.errors import InvalidValueError

if TYPE_CHECKING:
    from rmq.demo.spark.audience import AudienceReport


def audience(
    session: Session,
    lines: Annotated[str, typer.Argument(help="Order lines: Parquet, or CSV with a header.")],
    out: Annotated[str, typer.Option(metavar="FOLDER", help="Folder for the segments and the checkpoint.")],
    rules: Annotated[
        str | None, typer.Option(metavar="FILE", help="TOML or JSON file of rules: name = SQL condition.")
    ] = None,
    topic: Annotated[str, typer.Option(help="Name of the topic.")] = "audience",
    slots: Annotated[int, typer.Option(help="Number of slots of the topic.")] = 8,
    window: Annotated[str, typer.Option(help="Window in which a customer's changes merge.")] = "2s",
    batch: Annotated[int, typer.Option(help="Maximum number of customers in a batch.")] = 1_000,
    sources: Annotated[
        list[str] | None,
        typer.Option(
            "--source",
            metavar="NAME",
            help="Send only this kind of changes. Can be given more than once.  \\[default: all]",
        ),
    ] = None,
    no_send: Annotated[bool, typer.Option("--no-send", help="Send no changes; only drain the topic.")] = False,
    run_on: Annotated[
        bool, typer.Option("--run-on", help="Wait for changes of other senders until Ctrl-C or SIGTERM.")
    ] = False,
    rival: Annotated[
        int, typer.Option(metavar="N", help="Let a consumer outside Spark handle N customers meanwhile.")
    ] = 0,
    zookeeper: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT,...", help="Own slots through ZooKeeper, also in the consumer of --rival."),
    ] = None,
    chroot: Annotated[str, typer.Option(help="Path of RMQ's nodes in ZooKeeper.")] = "/rmq",
    zookeeper_user: ZooKeeperUser = None,
    zookeeper_ca: ZooKeeperCa = None,
    zookeeper_cert: ZooKeeperCert = None,
    zookeeper_key: ZooKeeperKey = None,
    master: Master = LOCAL,
) -> None:
    """Send changes of customers, read from order lines, and evaluate rules for the customers that changed."""
    if no_send and sources:
        raise InvalidValueError(f"--no-send cannot be combined with --source {sources[0]}")
    window_ms = typed_duration_ms(window, "--window")
    with needs_spark():
        from rmq.demo.spark.audience import SOURCES, AudienceSettings, access_of, check, run
        from rmq.demo.spark.customers import DEFAULT_RULES, read_rules
    chosen = DEFAULT_RULES if rules is None else read_rules(rules)
    sent = () if no_send else tuple(sources or SOURCES)
    access = access_of(zookeeper, chroot, zookeeper_user, zookeeper_ca, zookeeper_cert, zookeeper_key)
    settings = AudienceSettings(
        lines, out, "", rules=chosen, topic=topic, slots=slots, window_ms=window_ms, batch=batch,
        sources=sent, until_empty=not run_on, rival=rival, zookeeper=access,
    )  # fmt: skip
    with (
        spark_running(session, "audience", master, lambda url: check(replace(settings, url=url))) as running,
        until_signal() as stop,
    ):
        report = run(running.spark, replace(settings, url=running.url), running.say, stop)
    if session.json:
        session.document(report.to_json())
    else:
        show_audience(session, report, chosen)
    if not report.serial:
        raise typer.Exit(FAILED)


def show_audience(session: Session, report: AudienceReport, rules: Mapping[str, str]) -> None:
    """Print a report: tables of changes and segments, and the results of the checks."""
    if report.sent:
        changes = new_table("changes of", ">read", ">folded in Spark", ">merged in Redis", ">to evaluate")
        for name, counts in [*report.sent.items(), ("all", report.total)]:
            figures = (counts.rows, counts.folded, counts.merged, counts.new)
            changes.add_row(name, *(f"{figure:,}" for figure in figures))
        session.out.print(changes)
        nobody = f"{report.without_customer:,} of {report.lines:,} lines name no customer."
        session.line(f"{report.merged_share:.2%} of the changes merged. {nobody}\n")
    segments = new_table("segment", ">customers", ">share", "~rule")
    for name, members in report.members.items():
        share = members / report.customers if report.customers else 0.0
        segments.add_row(name, f"{members:,}", f"{share:.1%}", cut(rules[name]))
    session.out.print(segments)
    session.line(f"{report.customers:,} customers in all.\n")
    for kept, words in _checks(report):
        session.out.print(Text("kept   ", "green") if kept else Text("BROKEN ", "bold red"), words, sep="")
    session.line(
        f"\n{report.evaluated:,} evaluations in {report.batches:,} batches, {report.elapsed_s:.1f} s in all; "
        f"{counted(report.left, 'message')} left in the topic."
    )
    if report.died:
        session.warn(f"{counted(report.died, 'message')} died without an evaluation; `rmq dead list` shows the errors")
    if report.passed_over:
        session.warn(f"skipped {counted(report.passed_over, 'message')} that named no customer")


def _checks(report: AudienceReport) -> list[tuple[bool, str]]:
    wrong = report.disorder
    checks = [
        (not wrong.doubled, f"no duplicates: customers twice in a batch: {wrong.doubled:,}"),
        (
            not wrong.overlaps,
            f"one at a time: evaluated while another consumer held the customer: {wrong.overlaps:,}",
        ),
    ]
    if report.rival:
        words = f"up to date: of {report.rival:,} that the rival changed, not evaluated again: {wrong.outdated:,}"
        checks.append((not wrong.outdated, words))
    if report.expired:
        checks.append((True, f"leases that expired during the run: {report.expired:,}"))
    return checks
