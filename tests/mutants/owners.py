"""Bugs to plant in the script that keeps nodes for the owners of slots."""

from __future__ import annotations

from tests.mutants.mutant import mutant

OWNERS = (
    mutant("owners: numbers grow by 1 alone", ("keeper", "math.max(number + 1, now_ms)", "number + 1")),
    mutant(
        "owners: the first one after a standstill ends all others",
        ("keeper", "math.min(passed_ms, least_ms / 3)", "passed_ms"),
    ),
    mutant(
        "owners: a standstill ends sessions that are shorter than the caller's",
        ("keeper", "least_ms /", "timeout_ms /"),
    ),
    mutant(
        "owners: the timeout of a session that has ended counts",
        ("keeper", "redis.call('ZREM', timeouts, silent)", ""),
    ),
    mutant("owners: a clock that was set back ends sessions late", ("keeper", "math.max(0, math.min", "(math.min")),
    mutant(
        "owners: the nodes of a session that has ended stay",
        ("keeper", "remove(string.sub(member, #silent + 2), silent)", ""),
    ),
    mutant("owners: one call deletes any number of nodes", ("keeper", "local left = 2048", "local left = 1000000")),
    mutant("owners: a contact is not noted", ("keeper", "whole(clock + timeout_ms), session", "'1', session")),
    mutant("owners: a session that has ended goes on", ("keeper", "or -1) <= clock then", "or -1) < -1 then")),
    mutant("owners: a release needs no guard", ("keeper", "redis.call('HEXISTS', nodes, guard) == 0", "false")),
    mutant("owners: a release of another version counts", ("keeper", "version == current", "true")),
    mutant("owners: a release of another epoch counts", ("keeper", "version == created", "tonumber(version) > 1e6")),
    mutant("owners: a release deletes a node of another session", ("keeper", "owner == session or", "true or")),
    mutant("owners: own nodes of other parents are listed", ("keeper", "path .. '/', 65536", "path, 65536")),
    mutant(
        "owners: only own nodes are counted",
        ("keeper", "redis.call('ZLEXCOUNT', tree, '[' .. path .. '\\0', '(' .. path .. '\\1')", "#listed"),
    ),
    mutant("owners: a node is created below none", ("keeper", "redis.call('HEXISTS', nodes, parent) == 0", "false")),
    mutant("owners: a node is created twice", ("keeper", "redis.call('HEXISTS', nodes, path) == 1 or", "false or")),
    mutant("owners: data of another version is replaced", ("keeper", "if current ~= version then", "if false then")),
    mutant("owners: unchanged is said after a change", ("keeper", "unless ~= whole(number)", "unless == '0'")),
    mutant("owners: lost transactions are not noticed", ("keeper", "if known > number then", "if false then")),
    mutant("owners: a change is not hinted", ("keeper", "if changed then", "if false then")),
    mutant("owners: a full Redis ends sessions", ("keeper", "redis.call('ZREMRANGEBYRANK', sessions, 1, 0)", "")),
)
