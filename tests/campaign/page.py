"""Renders the result of a campaign into its page, between two markers. Pure."""

from __future__ import annotations

import re
from typing import Any

from benchmarks.support.rendering import number, table
from tests.histories.judge import KINDS

Document = dict[str, Any]
PROMISES = (*KINDS, "not accounted for", "left over")


def render(page: str, document: Document) -> str:
    """Return the page with the result in place of an earlier one with the same keeper."""
    name = "campaign-redis" if document["settings"].get("owners") == "redis" else "campaign"
    marked = re.compile(rf"(<!-- benchmark: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    return marked.sub(lambda match: f"{match[1]}\n{section(document)}\n\n{match[2]}", page)


def section(document: Document) -> str:
    """Return a result as Markdown."""
    parts = [_figures(document), _violations(document), _duplicates(document), _faults(document), _most(document)]
    return "\n\n".join([*filter(None, parts), _provenance(document)])


def _figures(document: Document) -> str:
    settings, notes = document["settings"], document["notes"]
    rows = [
        ("minutes", number(notes.get("minutes"), 1)),
        ("faults", number(sum(document["faults"].values()))),
        ("sends accepted", number(document["accepted"])),
        ("sends refused (full memory, full disk, a time that had passed)", number(document["refused"])),
        ("sends whose reply was lost", number(document["unknown"])),
        ("handlings", number(document["runs"])),
        ("sends handled again since a handler had failed", number(document["retries"])),
        ("sends handled again through a fault", number(sum(document["duplicates"].values()))),
        (
            "handlings at once: in a pause longer than a lease, or of entries whose send was repeated",
            number(sum(document["excused overlaps"].values())),
        ),
        ("dead at the end", number(notes.get("dead"))),
        ("longest time of a slot without an owner, s", number(document["longest_unowned_s"], 1)),
        ("allowed, s", number(settings["session_s"] + settings["recovery_s"], 1)),
        ("all handled after the last send, s", number(notes.get("drained_s"), 1)),
    ]
    if notes.get("spark"):
        rows.append(("writes of the Spark job: all rows confirmed", number(notes["spark"]["written"])))
        rows.append(("writes of the Spark job that failed", number(notes["spark"]["failed"])))
    return table(("figure", ""), rows)


def _violations(document: Document) -> str:
    found = document["violations"]
    others = [kind for kind in found if kind not in PROMISES]
    rows = [(kind, number(found.get(kind, 0))) for kind in (*PROMISES, *others)]
    return table(("broken promise", "times"), rows)


def _duplicates(document: Document) -> str:
    causes = sorted(document["duplicates"].items(), key=lambda pair: -pair[1])
    return table(("why a send was handled again", "times"), [(cause, number(times)) for cause, times in causes])


def _faults(document: Document) -> str:
    rows = [(kind, number(times)) for kind, times in document["faults"].items()]
    rows += [(f"{kind}: left out, {why}", "–") for kind, why in document["not tried"].items()]
    return table(("fault", "times"), rows)


def _most(document: Document) -> str:
    rows = [(name, number(early, 1), number(late, 1)) for name, (early, late) in sorted(document["most"].items())]
    return table(("median of the one that uses most", "second quarter", "last quarter"), rows) if rows else ""


def _provenance(document: Document) -> str:
    machine, settings = document["machine"], document["settings"]
    return (
        f"*Seed {settings['seed']}; {document['finished'][:10]}, commit {machine['commit']}, release before: "
        f"{document['notes'].get('release before')}; {machine['cpu']}, {machine['cores']} cores, "
        f"{machine['memory_gb']} GB, {machine['system']}; Python {machine['python']}, Redis {machine['redis']}, "
        f"redis-py {machine['redis_py']}; lease {settings['lease_s']} s, session {settings['session_s']:g} s.*"
    )
