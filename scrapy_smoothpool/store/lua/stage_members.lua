-- Second step of publishing: lay out up to 1,000 members beside the live pool.
--
-- A member of the live pool keeps its count. A parked one returns with the greater
-- of its own count and the pool's minimum. A newcomer starts at that minimum, or at
-- the start count when the pool is empty.
--
-- KEYS[1]  sorted set, id -> allocations: the live pool (read)
-- KEYS[2]  sorted set, id -> allocations when parked (read)
-- KEYS[3]  string, token of the publishing worker
-- KEYS[4]  sorted set, staging: id -> allocations
-- KEYS[5]  hash, staging: id -> line
-- KEYS[6]  hash, staging: id -> live count that was copied, to settle by
-- ARGV[1]  string, token of this worker's attempt
-- ARGV[2]  integer, ms for which the right to publish is lent from now on
-- ARGV[3]  integer, ms after which the staging keys vanish if nobody swaps them in
-- ARGV[4]  integer, start count
-- ARGV[5…] string, pairs of id and line
-- Returns  list of the ids that return from the parked, or nil when the right to
--          publish has passed to another worker
-- Cost     O(pairs × log n)
if redis.call('GET', KEYS[3]) ~= ARGV[1] then
    return false
end
redis.call('PEXPIRE', KEYS[3], ARGV[2])

local ids = {}
for i = 5, #ARGV, 2 do
    ids[#ids + 1] = ARGV[i]
end
local live = redis.call('ZMSCORE', KEYS[1], unpack(ids))
local parked = redis.call('ZMSCORE', KEYS[2], unpack(ids))
local minimum = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2] or ARGV[4]

local scores, copied, returning = {}, {}, {}
for i, id in ipairs(ids) do
    local score = live[i]
    if score then
        copied[#copied + 1] = id
        copied[#copied + 1] = score
    else
        score = minimum
        if parked[i] then
            returning[#returning + 1] = id
            score = tonumber(parked[i]) > tonumber(minimum) and parked[i] or minimum
        end
    end
    scores[#scores + 1] = score
    scores[#scores + 1] = id
end
redis.call('ZADD', KEYS[4], unpack(scores))
redis.call('HSET', KEYS[5], unpack(ARGV, 5))
if #copied > 0 then
    redis.call('HSET', KEYS[6], unpack(copied))
end
for i = 4, 6 do
    redis.call('PEXPIRE', KEYS[i], ARGV[3])
end
return returning
