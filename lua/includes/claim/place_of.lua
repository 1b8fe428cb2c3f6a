-- The place in a tier of `size` messages at which a claim with this stamp begins, from 0. It follows from the stamp
-- alone, and over many stamps all places are equally frequent. 67108859 is a prime, and cubes modulo it are a
-- permutation; all products are below 2^53, so they are exact.
local function place_of(stamp, size)
  local seed = stamp % 67108859
  local mixed = seed * seed % 67108859 * seed % 67108859 * 41475557 % 67108859
  return math.floor(mixed * size / 67108859)
end
