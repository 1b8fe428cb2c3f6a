-- Redis runs the scripts on Lua 5.1 and brings these names; anything else that is global is a mistake.
-- `make lint-lua` hands over the linked scripts.
std = "lua51"
read_globals = { "redis", "cjson", "cmsgpack", "struct", "bit", "KEYS" }
globals = { "ARGV" }
max_line_length = 120
-- What a block includes is written by itself: its arguments have the names of those around it.
ignore = { "431", "432" }
