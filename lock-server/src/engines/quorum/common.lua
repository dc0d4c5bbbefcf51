-- What the scripts of a member begin with: the caller is of the same quorum and in the same view, and
-- means this node, not one that it is a copy of.
--
-- KEYS[1]  meta, a hash: format cluster n view members node state run_id floor ready_at covered, and
--          p<bucket>, the highest token accepted in a bucket. One key, so that nothing of it is lost
--          alone.
-- ARGV[1]  the cluster  [2] of how many nodes  [3] the caller's view  [4] its members
-- ARGV[5]  the node that is meant: its id
--
-- Refusals, for all of them, before anything is written:
--        NOMEMBER            it belongs to no quorum
--        OTHER cluster n     it belongs to another one
--        NOTREADY            it does not vote
--        VIEW view members   its view is another one
--        STRANGER id         it is another node of that view, or a copy of one
--
-- Keys of a node, all under "{fence:<namespace>}:q:":
--        meta                see above
--        l:<lock>            the record of a lock, see lock.lua; it goes away by itself
--
-- Numbers stay below 10^15, exact in a double; what may have fifteen digits is written by int().
local meta

-- Reads what the node knows of itself, and further fields. Returns the refusal, if any.
local function admit(...)
  meta = redis.call('HMGET', KEYS[1], 'cluster', 'n', 'state', 'view', 'members', 'node', 'floor',
    'covered', ...)
  if not meta[1] or meta[1] == '' then
    return { 'NOMEMBER' }
  elseif meta[1] ~= ARGV[1] or meta[2] ~= ARGV[2] then
    return { 'OTHER', meta[1], meta[2] }
  elseif meta[3] ~= 'ready' then
    return { 'NOTREADY' }
  elseif meta[4] ~= ARGV[3] or meta[5] ~= ARGV[4] then
    return { 'VIEW', meta[4], meta[5] }
  elseif meta[6] ~= ARGV[5] then
    return { 'STRANGER', meta[6] }
  end
end

local function int(number)
  return string.format('%.0f', number)
end
