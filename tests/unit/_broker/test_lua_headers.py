"""The scripts keep what their headers say, and the rules that every script follows.

A header is read by people who call the script, and nothing else would notice when it lies. The checker works on text
alone: `problems_of(script, includes)` returns what is wrong, one sentence each.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from keyword import iskeyword
from pathlib import Path

import pytest

from rmq._transport.script_library import Linker, default_scripts

LUA = Path(__file__).resolve().parents[3] / "lua"
SCRIPTS = sorted(path for path in LUA.rglob("*.lua") if "libraries" not in path.parts)
INCLUDES = {path.stem: path.read_text(encoding="utf-8") for path in sorted((LUA / "libraries").glob("*.lua"))}

FORBIDDEN = {"KEYS", "SCAN", "SMEMBERS", "HGETALL", "HKEYS", "HVALS"}
NEEDS_LIMIT = {"ZRANGEBYSCORE", "ZREVRANGEBYSCORE", "ZRANGEBYLEX", "ZREVRANGEBYLEX"}
BY_RANK = {"ZRANGE", "ZREVRANGE"}
LINE = 120
"""Characters of a line, as `.luacheckrc` says; luacheck is not everywhere."""
LUA_ITSELF = {
    "and", "error", "function", "if", "ipairs", "next", "not", "or", "pairs", "pcall", "return", "select",
    "setmetatable", "tonumber", "tostring", "type", "unpack",
}  # fmt: skip
FIELDS = ("Returns", "Errors", "Complexity")

INCLUDE = re.compile(r"^ *-- @include ([\w, -]+?)[ \t]*$", re.MULTILINE)
ENTRY = re.compile(r"^--\s+(KEYS|ARGV)\[(\d+)(\.\.(\d+)?)?\]\s+\w+(\?)?")
NAMED = re.compile(
    r"--\s+(?P<table>KEYS|ARGV)\[(?P<number>\d+)(?P<tail>\.\.)?\]\s+(?P<name>\w+)(?P<optional>\?)?(?:\s|$)"
)
USE = re.compile(r"\b(KEYS|ARGV)\b(?:\s*\[\s*(\d+)\s*\])?")
STRING = r"'(?:\\.|[^'\\\n])*'|\"(?:\\.|[^\"\\\n])*\""
LITERAL = re.compile(STRING)
TOKEN = re.compile(rf"(?P<string>{STRING})|--\[(?P<eq>=*)\[.*?\](?P=eq)\]|--[^\n]*", re.DOTALL)
CALL = re.compile(r"\bredis\s*\.\s*p?call\s*\(")


@dataclass
class Documented:
    """The entries that a header names for KEYS or for ARGV."""

    numbers: set[int] = field(default_factory=set)
    optional: set[int] = field(default_factory=set)
    tail_from: int | None = None
    twice: set[int] = field(default_factory=set)

    def add(self, first: int, last: int | None, *, open_end: bool, optional: bool) -> None:
        if open_end:
            self.twice |= {first} if self.tail_from is not None else set()
            self.tail_from = first
            return
        numbers = set(range(first, (last or first) + 1))
        self.twice |= self.numbers & numbers
        self.numbers |= numbers
        self.optional |= numbers if optional else set()

    def covers(self, number: int) -> bool:
        return number in self.numbers or (self.tail_from is not None and number >= self.tail_from)


def code_of(text: str) -> str:
    """The text without its comments; a comment's line breaks stay, strings stay."""
    return TOKEN.sub(lambda token: token["string"] or "\n" * token[0].count("\n"), text)


def header_of(script: str) -> list[str]:
    lines: list[str] = []
    for line in script.splitlines():
        if not line.startswith("--") or INCLUDE.match(line):
            break
        lines.append(line)
    return lines


def included_by(text: str) -> list[str]:
    return [name for match in INCLUDE.finditer(text) for name in match[1].split(", ")]


def inline(text: str, includes: dict[str, str]) -> str:
    """The text with every definition that it reaches."""
    return Linker(dict.fromkeys(included_by(text), "") | includes).linked(text)


def problems_of(script: str, includes: dict[str, str]) -> list[str]:
    """What is wrong with a script, as sentences; empty when all is well."""
    code = code_of(inline(script, includes))
    problems = header_problems(header_of(script))
    problems += index_problems(header_of(script), code)
    problems += top_section_problems(script)
    problems += call_problems(code)
    problems += [f"includes '{name}', which is not there" for name in included_by(script) if name not in includes]
    problems += [f"the include '{name}' reads KEYS by itself" for name, text in used(script, includes) if keys_in(text)]
    if re.search(r"^#!", script, re.MULTILINE):
        problems.append("has a shebang, which refuses even ZREM at maxmemory and is unknown before Redis 7.0")
    return problems


def used(script: str, includes: dict[str, str]) -> list[tuple[str, str]]:
    """Each include that the script reaches, also through other includes."""
    found: list[tuple[str, str]] = []
    for name in Linker(includes).reach(name for name in included_by(script) if name in includes):
        found.append((name, includes[name]))
    return found


def keys_in(text: str) -> bool:
    return any(match[1] == "KEYS" and match[2] for match in USE.finditer(code_of(text)))


def header_problems(header: list[str]) -> list[str]:
    purpose = header[0].removeprefix("--").strip() if header else ""
    problems = [] if purpose and not ENTRY.match(header[0]) else ["the header does not begin with its purpose"]
    missing = [name for name in FIELDS if not any(re.match(rf"-- {name}: \S", line) for line in header)]
    problems += [f"the header has no '{name}:'" for name in missing]
    return problems + contract_problems(header)


def contract_problems(header: list[str]) -> list[str]:
    """What the library takes on trust when it reads the names of a header."""
    problems: list[str] = []
    named = [NAMED.match(line) for line in header if re.match(r"--\s+(KEYS|ARGV)\[", line)]
    if None in named:
        problems.append("the header has an entry without a name")
    for table in ("KEYS", "ARGV"):
        entries = [match for match in named if match and match["table"] == table]
        names = [match["name"] for match in entries]
        ranks = [2 if match["tail"] else 1 if match["optional"] else 0 for match in entries]
        if [int(match["number"]) for match in entries] != list(range(1, len(entries) + 1)):
            problems.append(f"the {table} are not numbered from 1: {', '.join(names)}")
        if len(set(names)) < len(names) or any(not name.isidentifier() or iskeyword(name) for name in names):
            problems.append(f"the {table} must be distinct identifiers: {', '.join(names)}")
        if ranks != sorted(ranks) or ranks.count(2) > 1:
            problems.append(f"the {table} must have what is optional after what is required, and one tail at the end")
    return problems


def documented_in(header: list[str]) -> dict[str, Documented]:
    documented = {"KEYS": Documented(), "ARGV": Documented()}
    for line in header:
        if match := ENTRY.match(line):
            table, first, dots, last, optional = match.groups()
            open_end = bool(dots) and not last
            documented[table].add(int(first), int(last) if last else None, open_end=open_end, optional=bool(optional))
    return documented


def index_problems(header: list[str], code: str) -> list[str]:
    """Compares the indices of the header with the literal ones of the code, includes inlined."""
    problems: list[str] = []
    code = code.replace("KEYS[base + ", "KEYS[")  # a script for several slots names the keys of one
    for table, entries in documented_in(header).items():
        uses = [match for match in USE.finditer(LITERAL.sub("''", code)) if match[1] == table]
        literal = {int(match[2]) for match in uses if match[2]}
        computed = any(not match[2] for match in uses)
        needed = entries.numbers - entries.optional if computed else entries.numbers
        unnamed = sorted(n for n in literal if not entries.covers(n))
        problems += [f"uses {table}[{n}], which the header does not name" for n in unnamed]
        problems += [f"does not use {table}[{n}] of the header" for n in sorted(needed - literal)]
        problems += [f"the header names {table}[{n}] twice" for n in sorted(entries.twice)]
        tail = entries.tail_from
        if computed and tail is None:
            problems.append(f"computes an index of {table}, but the header has no {table}[n..]")
        if tail is not None and not computed and not any(n >= tail for n in literal):
            problems.append(f"does not use {table}[{tail}..] of the header")
    return problems


def top_section_problems(script: str) -> list[str]:
    """KEYS[n] stands only in the first run of `local` statements, where it gets its name."""
    problems: list[str] = []
    state = "before"
    for number, line in enumerate(LITERAL.sub("''", code_of(script)).splitlines(), start=1):
        if line.strip() and not line[0].isspace() and line[0] not in ")}":
            is_local = re.match(r"local\s+(?!function\b)", line) is not None
            if is_local and state == "before":
                state = "top"
            elif not is_local and state == "top":
                state = "below"
        if state != "top" and re.search(r"\bKEYS\s*\[\s*\d", line):
            problems.append(f"line {number} has a bare KEYS[n] outside of the local names at the top")
    return problems


def call_problems(code: str) -> list[str]:
    problems: list[str] = []
    calls = [(arguments, words_in(arguments), is_literal(arguments)) for arguments in calls_in(code)]
    # commands named elsewhere than in a plain call: a call with a computed command may run any of them
    elsewhere = set(Counter(words_in(code)) - Counter(words[0] for _, words, literal in calls if literal))
    for arguments, words, literal in calls:
        commands = {words[0]} if literal else elsewhere
        if commands & FORBIDDEN:
            problems.append(f"calls what has no bound: {arguments.strip()}")
        elif commands & NEEDS_LIMIT and "LIMIT" not in words:
            problems.append(f"calls a range without LIMIT: {arguments.strip()}")
        elif commands & BY_RANK and "LIMIT" not in words and unbounded_range(arguments, words):
            problems.append(f"calls a range without a bound: {arguments.strip()}")
    return problems


def is_literal(arguments: str) -> bool:
    """Whether the command of a call is a plain string."""
    return re.match(rf"\s*({STRING})\s*(,|$)", arguments) is not None


def words_in(code: str) -> list[str]:
    return [literal[1:-1].upper() for literal in LITERAL.findall(code)]


def unbounded_range(arguments: str, words: list[str]) -> bool:
    by_score = "BYSCORE" in words or "BYLEX" in words
    return by_score or re.search(r",\s*['\"]?-1['\"]?\s*(,|$)", arguments) is not None


def calls_in(code: str) -> list[str]:
    """The arguments of each redis.call and redis.pcall, as text."""
    found: list[str] = []
    for match in CALL.finditer(code):
        # brackets inside strings do not count: blank the strings without moving anything
        blank = LITERAL.sub(lambda literal: "_" * len(literal[0]), code[match.end() :])
        depth = 1
        for end, character in enumerate(blank):
            depth += {"(": 1, ")": -1}.get(character, 0)
            if depth == 0:
                found.append(code[match.end() : match.end() + end])
                break
    return found


# --- the scripts -----------------------------------------------------------------------------------------------------


def test_there_are_scripts() -> None:
    assert SCRIPTS, f"no scripts in {LUA}"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script_keeps_its_header_and_the_rules(path: Path) -> None:  # pitfalls 10, 16, 18
    assert problems_of(path.read_text(encoding="utf-8"), INCLUDES) == []


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_no_line_is_longer_than_the_checker_allows(path: Path) -> None:
    assert [line for line in path.read_text(encoding="utf-8").splitlines() if len(line) > LINE] == []


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_defines_what_it_calls_and_nothing_else(path: Path) -> None:
    """Each definition costs the server about 0.1 us a call; one that is not there is an error at the call."""
    code = LITERAL.sub("''", code_of(inline(path.read_text(encoding="utf-8"), INCLUDES)))
    defined = re.findall(r"\blocal function (\w+)", code)
    uses = Counter(re.findall(r"(?<![.:\w])[A-Za-z_]\w*", code))
    assert [name for name, times in Counter(defined).items() if uses[name] < times + 1] == []
    assert set(re.findall(r"(?<![.:\w])([A-Za-z_]\w*)\(", code)) - {*defined} - local_names(code) - LUA_ITSELF == set()


def local_names(code: str) -> set[str]:
    """The names of local variables, loops' and parameters."""
    names = re.findall(r"\b(?:local|for) (?!function\b)([\w, ]+)|\bfunction ?\w*\(([\w, ]*)\)", code)
    return {name for found in names for name in "".join(found).strip().split(", ")}


def test_no_local_name_is_that_of_a_library() -> None:
    """The linker goes by names: one that means something else would bring a definition that nobody calls."""
    defined = {name for text in INCLUDES.values() for name in re.findall(r"^local function (\w+)", text, re.MULTILINE)}
    texts = {path.stem: code_of(path.read_text(encoding="utf-8")) for path in LUA.rglob("*.lua")}
    assert {name: local_names(code) & defined for name, code in texts.items() if local_names(code) & defined} == {}


def test_every_include_is_used_and_says_what_it_is_for() -> None:
    reached = {name for path in SCRIPTS for name, _ in used(path.read_text(encoding="utf-8"), INCLUDES)}
    assert set(INCLUDES) - reached == set()
    assert [name for name, text in INCLUDES.items() if not header_of(text)] == []


def test_what_writes_to_several_slots_has_a_key_that_never_exists() -> None:
    """Else it may fail half-way where a hash slot moves; to a slot's own keys RMQ adds one."""
    for script in (path for path in SCRIPTS if path.parent.name != "shared"):
        header = "\n".join(header_of(script.read_text("utf-8")))
        keys = header.partition("-- ARGV")[0]
        if "reads only" not in header and re.search(r"KEYS\[\d+\.\.\]", keys):
            assert re.search(r"\bwake\b", keys) or default_scripts()[script.stem].may_break_off, script.stem


# --- the checker -----------------------------------------------------------------------------------------------------

HONEST = """\
-- Take due messages.
--
-- KEYS[1]  store    ZSET  content -> score
-- KEYS[2]  prepare  ZSET  content -> claim score
-- ARGV[1]  epoch    whole number; 0 without ZooKeeper
-- ARGV[2..] contents
-- Returns: the contents taken; an empty array when none
-- Errors: none
-- Complexity: O(n log N)
-- @include now
local store, prepare = KEYS[1],
    KEYS[2]
local epoch = tonumber(ARGV[1])

local function due(limit) -- KEYS[9] in a comment is no use
    local taken = redis.call('ZRANGEBYSCORE', store, '-inf', now() .. ')', 'LIMIT', 0, limit)
    return taken
end

for i = 2, #ARGV do
    redis.call('ZADD', prepare, epoch, ARGV[i])
end
return due(100)
"""
NOW = {"now": "-- The time of the server.\nlocal function now() return redis.call('TIME')[1] end\n"}


def test_checker_accepts_an_honest_script() -> None:
    assert problems_of(HONEST, NOW) == []


OPTIONAL_FIRST = "the KEYS must have what is optional after what is required, and one tail at the end"
SHEBANG = "has a shebang, which refuses even ZREM at maxmemory and is unknown before Redis 7.0"
WRITE = "redis.call('ZADD', prepare, epoch, ARGV[i])"


@pytest.mark.parametrize(
    ("truth", "lie", "problem"),
    [
        ("-- Take due messages.\n--\n", "", "the header does not begin with its purpose"),
        ("-- Errors: none\n", "", "the header has no 'Errors:'"),
        ("-- KEYS[2]  prepare", "-- KEYS[3]  prepare", "uses KEYS[2], which the header does not name"),
        ("-- KEYS[2]  prepare", "-- KEYS[3]  prepare", "does not use KEYS[3] of the header"),
        ("-- ARGV[1]  epoch", "-- ARGV[1]  epoch\n-- ARGV[1]  era", "the header names ARGV[1] twice"),
        ("tonumber(ARGV[1])", "1", "does not use ARGV[1] of the header"),
        ("-- ARGV[2..] contents\n", "", "computes an index of ARGV, but the header has no ARGV[n..]"),
        ("-- ARGV[2..] contents", "-- ARGV[2..5] contents", "does not use ARGV[2] of the header"),
        ("-- ARGV[2..] contents", "-- ARGV[2..] epoch", "the ARGV must be distinct identifiers: epoch, epoch"),
        ("-- ARGV[2..] contents", "-- ARGV[2..] from", "the ARGV must be distinct identifiers: epoch, from"),
        ("-- ARGV[2..] contents", "-- ARGV[2..] contents, at most 9", "the header has an entry without a name"),
        ("-- KEYS[1]  store", "-- KEYS[0]  store", "the KEYS are not numbered from 1: store, prepare"),
        ("-- KEYS[1]  store", "-- KEYS[1]  store?", OPTIONAL_FIRST),
        ("-- ARGV[1]  epoch", "-- ARGV[1..] epoch", OPTIONAL_FIRST.replace("KEYS", "ARGV")),
        ("#ARGV do\n    " + WRITE, "2 do", "does not use ARGV[2..] of the header"),
        ("'ZADD', prepare", "'ZADD', KEYS[2]", "line 21 has a bare KEYS[n] outside of the local names at the top"),
        ("-- @include now", "-- @include then", "includes 'then', which is not there"),
        (", 'LIMIT', 0, limit", "", "calls a range without LIMIT: 'ZRANGEBYSCORE', store, '-inf', now() .. ')'"),
        (WRITE, "redis.call(x and 'ZRANGEBYLEX' or y)", "calls a range without LIMIT: x and 'ZRANGEBYLEX' or y"),
        (WRITE, "local c = 'ZRANGE' redis.call(c, store, 0, -1)", "calls a range without a bound: c, store, 0, -1"),
        (WRITE, "redis.pcall('zrange', store, 0, -1)", "calls a range without a bound: 'zrange', store, 0, -1"),
        (WRITE, "redis.call('ZRANGE', a, 0, 5, 'BYLEX')", "calls a range without a bound: 'ZRANGE', a, 0, 5, 'BYLEX'"),
        (WRITE, 'redis.call("HGETALL", store)', 'calls what has no bound: "HGETALL", store'),
        (WRITE, "redis.call('keys', '*')", "calls what has no bound: 'keys', '*'"),
        (WRITE, "local c = 'SCAN' redis.call(c, 0)", "calls what has no bound: c, 0"),
        ("-- Take", "#!lua\n-- Take", SHEBANG),
    ],
)
def test_checker_finds_a_lie(truth: str, lie: str, problem: str) -> None:
    assert HONEST.count(truth) == 1
    assert problem in problems_of(HONEST.replace(truth, lie), NOW)


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("#ARGV", "2"),
        ("return due(100)", "return ARGV[7]"),
        ("'ZRANGEBYSCORE'", '"zrevrangebyscore"'),
        ("'ZRANGEBYSCORE'", "x and 'ZRANGEBYSCORE' or 'ZREVRANGEBYSCORE'"),
        ("'ZADD', prepare", "command, prepare"),
        (WRITE, "redis.call(x and 'ZRANGE' or 'ZREVRANGE', store, i, i + 10 - 1) print(ARGV[i])"),
    ],
)
def test_checker_lets_pass_what_is_no_lie(text: str, other: str) -> None:
    assert HONEST.count(text) == 1
    assert problems_of(HONEST.replace(text, other), NOW) == []


def test_checker_reads_what_an_include_uses() -> None:
    sneaky = {"now": NOW["now"].replace("return", "local third, fifth = KEYS[3], tonumber(ARGV[5]) return")}
    problems = problems_of(HONEST, sneaky)
    assert problems == ["uses KEYS[3], which the header does not name", "the include 'now' reads KEYS by itself"]


@pytest.mark.parametrize("table", ["slot", "turn", "rules"])
def test_the_fields_of_the_tables_of_a_claim_are_listed_once(table: str) -> None:
    text = code_of(inline((LUA / "messages" / "claim.lua").read_text("utf-8"), INCLUDES))
    listed = INCLUDES["claims"].partition(f"\n-- `{table}`, ")[2].partition("\nlocal ")[0].partition("\n-- `")[0]
    names = [name for part in re.findall(r"(?m)(?:^--   |; )((?:\w+, )*\w+):", listed) for name in part.split(", ")]
    assert not {name for name, number in Counter(names).items() if number > 1}
    assert set(names) == set(re.findall(rf"\b{table}\.(\w+)", LITERAL.sub("''", text)))
