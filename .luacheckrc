-- Redis runs the scripts on Lua 5.1 and brings these names; anything else that is global is a mistake.
std = "lua51"
read_globals = { "redis", "cjson", "cmsgpack", "struct", "bit", "KEYS", "ARGV" }
max_line_length = 120
