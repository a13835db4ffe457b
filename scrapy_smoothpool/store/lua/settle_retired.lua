-- Last step of publishing, repeated until nothing is left: up to 1,000 members of
-- the former pool.
--
-- Picks made between staging and swap are carried over to those still listed; the
-- others are parked with their count, and their record is forgotten. Any worker may
-- run it, twice at once or after another one died: each call takes its members off the
-- list in the same script.
--
-- KEYS[1]  sorted set, id -> allocations: the former pool
-- KEYS[2]  hash, id -> live count copied while staging
-- KEYS[3]  sorted set, id -> allocations: the members in rotation
-- KEYS[4]  sorted set, id -> allocations: the members that are out
-- KEYS[5]  hash, id -> record, as in report_outcomes.lua
-- KEYS[6]  sorted set, id -> allocations when parked
-- KEYS[7]  sorted set, id -> server time of parking, s
-- KEYS[8]  sorted set, id -> allocations: those of the former pool who were out
-- ARGV[1]  integer, members to take at most (1,000)
-- ARGV[2]  integer, s after the last parking when the parked vanish altogether
-- Returns  integer, members left for further calls
-- Cost     O(taken × log n)
local from = redis.call('ZCARD', KEYS[1]) > 0 and KEYS[1] or KEYS[8]
local former = redis.call('ZRANGE', from, 0, ARGV[1] - 1, 'WITHSCORES')
local ids = {}
for i = 1, #former, 2 do
    ids[#ids + 1] = former[i]
end
if #ids > 0 then
    local copied = redis.call('HMGET', KEYS[2], unpack(ids))
    local live = redis.call('ZMSCORE', KEYS[3], unpack(ids))
    local benched = redis.call('ZMSCORE', KEYS[4], unpack(ids))
    local now = redis.call('TIME')[1]
    local counts, times, gone = {}, {}, {}
    for i, id in ipairs(ids) do
        local count, present = former[2 * i], benched[i] or live[i]
        if present then
            local grown = tonumber(count) - tonumber(copied[i] or present)
            if grown > 0 then
                local key = benched[i] and KEYS[4] or KEYS[3]
                redis.call('ZINCRBY', key, string.format('%.17g', grown), id)
            end
        else
            counts[#counts + 1] = count
            counts[#counts + 1] = id
            times[#times + 1] = now
            times[#times + 1] = id
            gone[#gone + 1] = id
        end
    end
    if #gone > 0 then
        redis.call('ZADD', KEYS[6], 'GT', unpack(counts))
        redis.call('ZADD', KEYS[7], unpack(times))
        redis.call('EXPIRE', KEYS[6], ARGV[2])
        redis.call('EXPIRE', KEYS[7], ARGV[2])
        redis.call('HDEL', KEYS[5], unpack(gone))
    end
    redis.call('ZREMRANGEBYRANK', from, 0, #ids - 1)
end
local left = redis.call('ZCARD', KEYS[1]) + redis.call('ZCARD', KEYS[8])
if left == 0 then
    redis.call('UNLINK', KEYS[2])
end
return left
