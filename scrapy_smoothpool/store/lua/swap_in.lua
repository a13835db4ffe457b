-- Third step of publishing: the staged list becomes the live one, at once.
--
-- KEYS[1]  sorted set, id -> allocations: the live pool
-- KEYS[2]  hash, id -> line: the live pool's lines
-- KEYS[3]  string, fingerprint of the live list
-- KEYS[4]  sorted set, id -> allocations: the former pool, to be settled
-- KEYS[5]  hash, id -> live count copied while staging, to settle by
-- KEYS[6]  string, token of the publishing worker
-- KEYS[7]  sorted set, staging: id -> allocations
-- KEYS[8]  hash, staging: id -> line
-- KEYS[9]  hash, staging: id -> live count that was copied
-- ARGV[1]  string, token of this worker's attempt
-- ARGV[2]  string, fingerprint of the staged list
-- ARGV[3]  integer, members of the staged list
-- Returns  {former size, members kept, former fingerprint or ''}; or nil, nothing
--          having changed, when the right to publish has passed to another worker,
--          the staging keys are gone, or an earlier swap is not settled
-- Cost     O(1): renames; the former lines are freed in the background
local size = tonumber(ARGV[3])
if redis.call('GET', KEYS[6]) ~= ARGV[1]
    or redis.call('ZCARD', KEYS[7]) ~= size
    or redis.call('HLEN', KEYS[8]) ~= size
    or redis.call('ZCARD', KEYS[4]) > 0
then
    return false
end
local former_size = redis.call('ZCARD', KEYS[1])
local kept = redis.call('HLEN', KEYS[9])
local former = redis.call('GET', KEYS[3]) or ''

redis.call('UNLINK', KEYS[2], KEYS[5])
if former_size > 0 then
    redis.call('RENAME', KEYS[1], KEYS[4])
    if kept > 0 then
        redis.call('RENAME', KEYS[9], KEYS[5])
        redis.call('PERSIST', KEYS[5])
    end
else
    redis.call('UNLINK', KEYS[9])
end
redis.call('RENAME', KEYS[7], KEYS[1])
redis.call('PERSIST', KEYS[1])
redis.call('RENAME', KEYS[8], KEYS[2])
redis.call('PERSIST', KEYS[2])
redis.call('SET', KEYS[3], ARGV[2])
return {former_size, kept, former}
