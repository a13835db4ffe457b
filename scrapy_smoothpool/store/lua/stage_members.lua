-- Second step of publishing: lay out up to 1,000 members beside the live pool.
--
-- A member of the live pool, in rotation or out, keeps its count. A parked one returns
-- with the greater of its own count and the pool's minimum. A newcomer starts at that
-- minimum, or at the start count when the pool is empty. As candidates those two kinds
-- go on the bench, due at once, each with an epoch of its own: nothing that was
-- assigned before says anything of them.
--
-- KEYS[1]  sorted set, id -> allocations: the members in rotation (read)
-- KEYS[2]  sorted set, id -> allocations: the members that are out (read)
-- KEYS[3]  sorted set, id -> allocations when parked (read)
-- KEYS[4]  string, the clock of ejections
-- KEYS[5]  string, token of the publishing worker
-- KEYS[6]  sorted set, staging: id -> allocations
-- KEYS[7]  hash, staging: id -> line
-- KEYS[8]  hash, staging: id -> live count that was copied, to settle by
-- KEYS[9]  sorted set, staging: id -> allocations of candidates
-- KEYS[10] sorted set, staging: id -> time to wake of others that are out (left empty)
-- KEYS[11] sorted set, staging: id -> epoch of a candidate
-- KEYS[12] sorted set, staging: id -> server time, ms, when a candidate is due
-- ARGV[1]  string, token of this worker's attempt
-- ARGV[2]  integer, ms for which the right to publish is lent from now on
-- ARGV[3]  integer, ms after which the staging keys vanish if nobody swaps them in
-- ARGV[4]  integer, start count
-- ARGV[5]  integer, 1 if newcomers and returning ones are candidates
-- ARGV[6…] string, pairs of id and line
-- Returns  list of the ids that return from the parked, or nil when the right to
--          publish has passed to another worker
-- Cost     O(pairs × log n)
if redis.call('GET', KEYS[5]) ~= ARGV[1] then
    return false
end
redis.call('PEXPIRE', KEYS[5], ARGV[2])

local ids = {}
for i = 6, #ARGV, 2 do
    ids[#ids + 1] = ARGV[i]
end
local live = redis.call('ZMSCORE', KEYS[1], unpack(ids))
local benched = redis.call('ZMSCORE', KEYS[2], unpack(ids))
local parked = redis.call('ZMSCORE', KEYS[3], unpack(ids))
local minimum = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2]
    or redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2]
    or ARGV[4]

local rotation, candidates, copied, returning = {}, {}, {}, {}
for i, id in ipairs(ids) do
    local score, into = benched[i] or live[i], rotation
    if score then
        copied[#copied + 1] = id
        copied[#copied + 1] = score
    else
        score = minimum
        if parked[i] then
            returning[#returning + 1] = id
            score = tonumber(parked[i]) > tonumber(minimum) and parked[i] or minimum
        end
        into = ARGV[5] == '1' and candidates or rotation
    end
    into[#into + 1] = score
    into[#into + 1] = id
end
if #rotation > 0 then
    redis.call('ZADD', KEYS[6], unpack(rotation))
end
redis.call('HSET', KEYS[7], unpack(ARGV, 6))
if #copied > 0 then
    redis.call('HSET', KEYS[8], unpack(copied))
end
if #candidates > 0 then
    redis.call('ZADD', KEYS[9], unpack(candidates))
    local time = redis.call('TIME')
    local now = time[1] * 1000 + math.floor(time[2] / 1000)
    local epoch = tonumber(redis.call('GET', KEYS[4])) or 0
    for i = 2, #candidates, 2 do
        redis.call('ZADD', KEYS[12], now, candidates[i])
        redis.call('ZADD', KEYS[11], epoch + i / 2, candidates[i])
    end
    redis.call('SET', KEYS[4], string.format('%.0f', epoch + #candidates / 2))
end
for i = 6, 12 do
    redis.call('PEXPIRE', KEYS[i], ARGV[3])
end
return returning
