"""Checks of a deployment, for `rmq doctor`: servers, rights, clocks, definitions, and the findings of `rmq status`.

A check has a state and says what to do. Facts are read here, and judged by pure functions. Nothing is written: rights
are asked for with ACL DRYRUN, which Redis has since 7.0.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

from rmq.client import RmqClient
from rmq.errors import RedisUnavailableError, RmqError, ScriptFailedError, UnsafeRedisError
from rmq.spi import connections_of, counted, sample_commands, shown, warnings_about
from rmq.views.findings import Finding, Kind, Severity, findings_of
from rmq.views.reading import read_all

CLOCKS_S = 1.0
"""Seconds by which two clocks may differ."""


class State(Enum):
    """Result of a check: `FAILED` needs a change now; `UNKNOWN` could not be checked."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Check:
    """A check of a deployment.

    Attributes:
        state: Its result.
        subject: What was checked: server, rights, clocks, definitions, or topics and workers.
        text: What was found, escaped for terminals.
        advice: What to do; empty if nothing.
    """

    state: State
    subject: str
    text: str
    advice: str = ""


def examine(client: RmqClient) -> Iterator[Check]:
    """Check the deployment of a client. Ends with the first check that fails because Redis cannot be used at all."""
    try:
        infos = _ask(client, "INFO")
    except UnsafeRedisError as error:
        yield Check(State.FAILED, "server", shown(str(error), 500), "change the setting, then run `rmq doctor` again")
        return
    except RedisUnavailableError as error:
        advice = "check the URL, the network, and whether the server runs"
        yield Check(State.FAILED, "server", shown(str(error), 500), advice)
        return
    except RmqError as error:
        yield Check(State.UNKNOWN, "server", shown(str(error), 500), "grant +info to see settings and versions")
    else:
        yield from _servers(client, {address: _parsed(info) for address, info in infos.items()})
    yield from _guarded("clocks", lambda: judge_clocks(read_clocks(partial(_ask, client))))
    yield from _guarded("definitions", lambda: _definitions(client))
    yield from _guarded("rights", lambda: _rights(client))
    yield from _guarded("topics and workers", lambda: _findings(client))


def _guarded(subject: str, look: Callable[[], Iterable[Check]]) -> list[Check]:
    """Run checks; an error of one is its result, and the others still run."""
    try:
        return list(look())
    except RmqError as error:
        return [Check(State.FAILED, subject, shown(str(error), 500))]


def _ask(client: RmqClient, *command: str) -> Mapping[str, Any]:
    return connections_of(client).ask_masters(*command)


def _parsed(info: bytes) -> dict[str, str]:
    return dict(line.split(":", 1) for line in info.decode(errors="replace").splitlines() if ":" in line)


def _servers(client: RmqClient, infos: Mapping[str, Mapping[str, str]]) -> Iterator[Check]:
    settings: Mapping[str, Sequence[bytes]] = {}
    with suppress(RmqError):
        settings = _ask(client, "CONFIG", "GET", "save")
    for address, info in infos.items():
        pairs = settings.get(address, ())  # none of a server that became a master in between
        save = pairs[1].decode() if len(pairs) == 2 else None
        yield from judge_server(address, info, save)
    versions = {_version(info) for info in infos.values()}
    if len(versions) > 1:
        text = f"different versions: {', '.join(sorted(versions))}"
        yield Check(State.WARNING, "server", text, "upgrade the older servers")


def _version(info: Mapping[str, str]) -> str:
    valkey = info.get("valkey_version")
    return f"Valkey {valkey}" if valkey else f"Redis {info.get('redis_version', 'of an unknown version')}"


def judge_server(address: str, info: Mapping[str, str], save: str | None) -> Iterator[Check]:
    """Check the settings of a server.

    Args:
        address: Its address.
        info: Its reply to INFO.
        save: Its setting `save`; `None` if unknown.
    """
    subject = "server" if address.startswith(":") else f"server {address}"  # a Unix socket has no host
    policy, limit = info.get("maxmemory_policy", "?"), int(info.get("maxmemory", "0"))
    aof, saves = info.get("aof_enabled") == "1", save is None or bool(save)
    problems = [(text, "") for text in warnings_about(info, save)]
    if not aof and not saves:
        problems.append(("has no persistence: a restart loses all messages", "set appendonly yes"))
    if not limit:
        advice = "set maxmemory below the memory of the machine; sends are then refused before Redis is killed"
        problems.append(("has no maxmemory", advice))
    if not problems:
        how = "AOF" if aof else "RDB snapshots"
        yield Check(State.OK, subject, f"{_version(info)}, maxmemory-policy {policy}, {how}")
    for text, advice in problems:
        yield Check(State.WARNING, subject, text, advice)


def read_clocks(ask: Callable[..., Mapping[str, Any]]) -> Mapping[str, tuple[float, float]]:
    """Return by server how far its clock is ahead of this machine's, and by how much this may be wrong, seconds.

    Args:
        ask: Sends a command to every server that holds slots; returns the replies by address.
    """
    began_s = time.time()
    times = ask("TIME")  # once: the servers may be others a moment later
    ended_s = time.time()
    here_s, doubt_s = (began_s + ended_s) / 2, abs(ended_s - began_s) / 2
    return {
        address: (int(seconds) + int(micros) / 1e6 - here_s, doubt_s) for address, (seconds, micros) in times.items()
    }


def judge_clocks(clocks: Mapping[str, tuple[float, float]]) -> Iterator[Check]:
    """Compare the servers' clocks with each other, and with this machine's; `clocks` is as `read_clocks` returns."""
    ahead = [ahead_s for ahead_s, _ in clocks.values()]
    doubt_s = max(doubt_s for _, doubt_s in clocks.values())
    advice = "synchronize the clocks, for example with chrony"
    apart_s = max(ahead) - min(ahead)
    if apart_s > CLOCKS_S + 2 * doubt_s:
        text = f"the servers' clocks differ by {apart_s:.1f} s: due times depend on the server of the slot"
        yield Check(State.WARNING, "clocks", text, advice)
    farthest_s = max(ahead, key=abs)
    if abs(farthest_s) > CLOCKS_S + doubt_s:
        where = "ahead of" if farthest_s > 0 else "behind"
        text = f"Redis' clock is {abs(farthest_s):.1f} s {where} this machine's; messages are due by Redis' clock"
        yield Check(State.WARNING, "clocks", text, advice)
    elif apart_s <= CLOCKS_S + 2 * doubt_s:
        yield Check(State.OK, "clocks", f"within {max(CLOCKS_S, doubt_s):.0f} s of this machine's")


def _definitions(client: RmqClient) -> Iterator[Check]:
    found = client.definitions()
    for each in found.unreadable:
        advice = "run the newest version of RMQ that the deployment has, or repair the definition"
        yield Check(State.FAILED, f"definition {each.name}", shown(each.reason, 500), advice)
    if not found.unreadable:
        yield Check(State.OK, "definitions", f"{counted(len(found.topics), 'topic')}, all readable")


def _rights(client: RmqClient) -> Iterator[Check]:
    topics = client.topics()
    topic = next((each for each in topics if each.type.name != "STREAM"), None)
    if topic is None:
        lacking = "except STREAM topics" if topics else "yet"
        yield Check(State.UNKNOWN, "rights", f"not checked: there is no topic {lacking}")
        return
    try:
        user = next(iter(_ask(client, "ACL", "WHOAMI").values())).decode()
        sharded = connections_of(client).subscribe == "SSUBSCRIBE"
        denied: dict[str, None] = {}
        for sample in sample_commands(topic.name, sharded):
            for reply in _ask(client, "ACL", "DRYRUN", user, *sample).values():
                if reply != b"OK":
                    denied[f"{sample[0]} {sample[1] if len(sample) > 1 else ''}: {shown(reply)}"] = None
    except ScriptFailedError as error:
        text = f"not checked: ACL DRYRUN needs Redis 7.0 and the right +acl ({shown(str(error), 200)})"
        yield Check(State.UNKNOWN, "rights", text, "docs/operate/operations.md lists the rights that RMQ needs")
        return
    for each in denied:
        advice = "grant the rights that docs/operate/operations.md lists"
        yield Check(State.FAILED, f"rights of user {shown(user)}", each, advice)
    if not denied:
        yield Check(State.OK, f"rights of user {shown(user)}", f"all that topic {topic.name} needs")


def _findings(client: RmqClient) -> Iterator[Check]:
    reading = read_all(client)
    found: list[Finding] = [each for each in findings_of(reading) if each.kind is not Kind.UNREADABLE or each.topic]
    for each in found:
        state = State.FAILED if each.severity is Severity.CRITICAL else State.WARNING
        yield Check(state, each.about or "workers", each.text, f"`{each.command}` shows more")
    if not found:
        owners = sum(each.zookeeper for each in reading.active)
        text = f"{counted(len(reading.topics), 'topic')} without findings, {counted(len(reading.active), 'worker')}"
        yield Check(State.OK, "topics and workers", text + (f", {owners} of them own slots" if owners else ""))
