"""Bugs to plant in the claims of topics with ties `any`."""

from __future__ import annotations

from tests.mutants.mutant import mutant

TIES = (
    mutant("ties: contents decide", ("place_of", "math.floor(view.share * size)", "0")),
    mutant(
        "ties: places move with the stamp",
        ("place_of", "seed * seed % 67108859 * seed % 67108859 * 41475557 % 67108859", "seed"),
    ),
    mutant("ties: a place beyond the tier", ("place_of", "math.floor(view", "1 + math.floor(view")),
    mutant("ties: tiers within a claim are not turned", ("turn_tiers", "if place > 0 then", "if false then")),
    mutant(
        "ties: turning doubles a message",
        ("turn_tier", "at = at + 2 * (size - place)", "at = at + 2 * (size - place - 1)"),
    ),
    mutant(
        "ties: a tier that goes on is not seen",
        ("read_turned", "page[2 * size + 2] == score", "false"),
    ),
    mutant("ties: tiers above count as members", ("open_tier", "'+inf') - first", "'+inf')")),
    mutant("ties: the tier is taken without those above it", ("read_turned", "view.rank + first - 1", "view.rank")),
    mutant("ties: the message beyond is claimed, too", ("read_turned", "page[2 * size + 1], page", "page")),
    mutant(
        "ties: what follows a tier is read from its start",
        ("read_turned", "view.tier.first + view.tier.size, nil", "view.tier.first, nil"),
    ),
    mutant(
        "ties: a tier ends its page",
        ("read_turned", "    size = size - #before / 2\n", "    size = 0\n"),
    ),
    mutant("ties: no way around", ("read_tier", "if number > straight then", "if false then")),
    mutant("ties: a tier is read from its place again", ("read_tier", "tier.seen = tier.seen + number", "")),
    mutant(
        "ties: the range that lies further back is one too long",
        ("trim_turned", "beyond - from - tier.seen, -from - 1", "beyond - from - tier.seen - 1, -from - 1"),
    ),
    mutant(
        "ties: the range in front goes first",
        (
            "trim_turned",
            "  local upto, tier = view.rank, view.tier\n",
            "  local upto, tier = view.rank, view.tier\n"
            "  redis.call('ZREMRANGEBYRANK', slot.store, -tier.first - 1, -1)\n",
        ),
    ),
    mutant(
        "ties: what went around the ring stays in store",
        ("trim_turned", "upto = tier.first + beyond", "upto = tier.first"),
    ),
    mutant(
        "ties: what did not fit leaves by rank",
        ("take_fresh", "slot.view and (slot.cut or rest) then", "slot.view and rest then"),
    ),
    mutant(
        "ties: what was left for retries' claims leaves by rank",
        ("take_fresh", "slot.view and (slot.cut or rest) then", "slot.view and slot.cut then"),
    ),
    mutant(
        "ties: a tier leaves by rank",
        ("take_fresh", "elseif slot.view and slot.view.tier then", "elseif false then"),
    ),
    mutant(
        "ties: one message of a tier is always the first",
        ("take_fresh", "and not tied then", "then"),
    ),
    mutant("ties: every first tier is counted", ("take_fresh", "peek[2] == peek[4] and peek[2]", "peek[2]")),
    mutant("ties: a first tier that goes on is missed", ("read_turned", "tier.size > size and tier or nil", "nil")),
    mutant("ties: the slow way goes by contents", ("take", "slot.any and start == 0 and", "false and")),
    mutant("ties: a search that resumes turns again", ("take", "slot.any and start == 0 and", "slot.any and")),
    mutant("ties: a search that resumes leaves one out", ("take", "slot.any and start > 0 and 1 or 0", "0")),
    mutant(
        "ties: a search resumes behind its tier", ("take", "slot.view.rank - #contents) + 1", "rank - #contents) + 1")
    ),
    mutant("ties: Spark reads by contents", ("spark_read", "ARGV[7] == 'any'", "false")),
    mutant(
        "ties: joined claims go by contents", ("claim", "any = order == 'any'", "any = not joined and order == 'any'")
    ),
    mutant("ties: promoted beside an equal", ("promote", "first[2] == first[4] or", "")),
)
