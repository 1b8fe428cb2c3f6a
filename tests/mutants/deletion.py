"""Bugs to plant in the script that drops a slot of a deleted topic."""

from __future__ import annotations

from tests.mutants.mutant import mutant

DELETION = (
    mutant("deletion: what is in flight is not counted", ("delete_topic", "string.find(KEYS[i], '^prepare{') or ", "")),
    mutant("deletion: the dead are not counted", ("delete_topic", " or string.find(KEYS[i], '^dead[:{]')", "")),
    mutant("deletion: a slot that holds something is dropped", ("delete_topic", "step == 'ask' and", "false and")),
    mutant("deletion: a repeat forgets the number", ("delete_topic", "number = owner and 0 or number", "number = 0")),
    mutant(
        "deletion: a repeat counts what is there anew", ("delete_topic", "if owner ~= deletion then", "if true then")
    ),
    mutant("deletion: no tombstone", ("delete_topic", "redis.call('SET', store,", "local _ = (")),
    mutant("deletion: an old client drops what came later", ("delete_topic", "deletion <= cleared", "false")),
    mutant("deletion: clearing takes any tombstone", ("delete_topic", "owner and owner <= deletion", "owner")),
    mutant(
        "deletion: groups that were not named stay behind",
        ("delete_topic", "groups and redis.call('EXISTS', store) == 1 and", "false and"),
    ),
    mutant(
        "deletion: a stream without entries keeps its groups",
        ("delete_topic", "redis.call('EXISTS', store) == 1 and", "number > 0 and"),
    ),
    mutant("deletion: an earlier deletion replaces a later one", ("delete_topic", "deletion < owner", "false")),
    mutant(
        "deletion: clearing an earlier one revives a later one",
        ("delete_topic", "and cleared < deletion then", "then"),
    ),
    mutant("deletion: epochs begin anew", ("delete_topic", "if kept[1] and kept[i] then", "if false then")),
    mutant(
        "deletion: another program's key is replaced",
        ("delete_topic", "if not owner then", "if type(text) ~= 'string' then"),
    ),
    mutant("deletion: a definition that was changed is replaced", ("registry_define", "== expected", "~= '-'")),
    mutant("deletion: a full Redis keeps the definition", ("registry_define", "replicate(topics)", "")),
)
