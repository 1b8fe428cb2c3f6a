-- The place in a tier of `size` messages at which a claim begins, from 0. It follows from the claim's stamp alone, and
-- over many stamps all places are equally frequent. 67108859 is a prime, and cubes modulo it are a permutation; all
-- products are below 2^53, so they are exact.
local function place_of(view, size)
  if not view.share then
    local seed = view.stamp % 67108859
    view.share = seed * seed % 67108859 * seed % 67108859 * 41475557 % 67108859 / 67108859
  end
  return math.floor(view.share * size)
end
