-- Third step of publishing: the staged list becomes the live one, at once.
--
-- Who is out stays out if the new list has it, with count, record and time to wake; else it
-- leaves the bench, and its count is parked like that of others who left. So before the swap
-- everybody who was put out, came back or is probed since staging began is put where it belongs
-- in the staged list, some at each call; the call that finds none left over swaps. Should
-- nobody be in rotation then, the one that would have come back first does so, candidates
-- excepted.
--
-- KEYS[1]  sorted set, id -> allocations: the members in rotation
-- KEYS[2]  hash, id -> line: the live pool's lines
-- KEYS[3]  string, fingerprint of the live list
-- KEYS[4]  sorted set, id -> allocations: the former pool, to be settled
-- KEYS[5]  hash, id -> live count copied while staging, to settle by
-- KEYS[6]  string, token of the publishing worker
-- KEYS[7]  sorted set, id -> allocations: the members that are out
-- KEYS[8]  sorted set, id -> server time of the next step, ms, of those put out
-- KEYS[9]  sorted set, id -> epoch of the ejection
-- KEYS[10] sorted set, id -> server time of the next step, ms, of those out and unchecked
-- KEYS[11] hash, id -> record, as in report_outcomes.lua
-- KEYS[12] sorted set, staging: id -> allocations
-- KEYS[13] hash, staging: id -> line
-- KEYS[14] hash, staging: id -> live count that was copied
-- KEYS[15] sorted set, staging: id -> allocations of those out; becomes KEYS[7]
-- KEYS[16] sorted set, staging: id -> time to wake; becomes KEYS[8]
-- KEYS[17] sorted set, staging: id -> epoch; becomes KEYS[9]
-- KEYS[18] sorted set, staging: id -> when a candidate is due; becomes KEYS[10]
-- KEYS[19] set, ids to be put where they belong
-- KEYS[20] sorted set, id -> allocations: who was out in the former pool, to be settled
-- ARGV[1]  string, token of this worker's attempt
-- ARGV[2]  string, fingerprint of the staged list
-- ARGV[3]  integer, members of the staged list
-- ARGV[4]  integer, ids to put in their places at most (1,000)
-- ARGV[5]  integer, ms for which the right to publish is lent from now on
-- ARGV[6]  integer, ms after which the staging keys vanish if nobody swaps them in
-- Returns  {former size, members kept, former fingerprint or '', id let back in or '', 1 if there
--          are more records than members}; an integer, ids still to be put in their places, when
--          it has to be called again; or nil, nothing having changed, when the right to publish
--          has passed to another worker, the staging keys are gone, or an earlier swap is not
--          settled
-- Cost     O(ids × log n); the swap itself is renames, and what is dropped is freed in the
--          background
local size, step = tonumber(ARGV[3]), tonumber(ARGV[4])
if redis.call('GET', KEYS[6]) ~= ARGV[1]
    or redis.call('ZCARD', KEYS[12]) + redis.call('ZCARD', KEYS[15]) ~= size
    or redis.call('HLEN', KEYS[13]) ~= size
    or redis.call('ZCARD', KEYS[4]) + redis.call('ZCARD', KEYS[20]) > 0
then
    return false
end

local function change(command, key, list)
    if #list > 0 then
        redis.call(command, key, unpack(list))
    end
end

local function add(list, score, id)
    list[#list + 1] = score
    list[#list + 1] = id
end

local ids = redis.call('SPOP', KEYS[19], step)
if #ids > 0 then
    local live = redis.call('ZMSCORE', KEYS[1], unpack(ids))
    local benched = redis.call('ZMSCORE', KEYS[7], unpack(ids))
    local wakes = redis.call('ZMSCORE', KEYS[8], unpack(ids))
    local epochs = redis.call('ZMSCORE', KEYS[9], unpack(ids))
    local checks = redis.call('ZMSCORE', KEYS[10], unpack(ids))
    local rotation = redis.call('ZMSCORE', KEYS[12], unpack(ids))
    local out = redis.call('ZMSCORE', KEYS[15], unpack(ids))
    local leave, stay = {}, {} -- the staged rotation, the staged bench
    local back, counts, ejected, waiting, unchecked = {}, {}, {}, {}, {}
    for i, id in ipairs(ids) do
        local count = rotation[i] or out[i]
        if count and benched[i] then
            leave[#leave + 1] = id
            add(counts, count, id)
            add(ejected, epochs[i] or 0, id)
            add(checks[i] and unchecked or waiting, checks[i] or wakes[i] or 0, id)
        elseif out[i] and live[i] then
            stay[#stay + 1] = id
            add(back, count, id)
        end
    end
    change('ZREM', KEYS[12], leave)
    for i = 15, 18 do
        change('ZREM', KEYS[i], stay)
        change('ZREM', KEYS[i], leave)
    end
    change('ZADD', KEYS[12], back)
    change('ZADD', KEYS[15], counts)
    change('ZADD', KEYS[16], waiting)
    change('ZADD', KEYS[17], ejected)
    change('ZADD', KEYS[18], unchecked)
    local left = redis.call('SCARD', KEYS[19])
    if left > 0 then
        redis.call('PEXPIRE', KEYS[6], ARGV[5])
        for i = 12, 19 do
            redis.call('PEXPIRE', KEYS[i], ARGV[6])
        end
        return left
    end
end

local former_size = redis.call('ZCARD', KEYS[1]) + redis.call('ZCARD', KEYS[7])
local kept = redis.call('HLEN', KEYS[14])
local former = redis.call('GET', KEYS[3]) or ''

local function rename(from, to)
    redis.call('UNLINK', to)
    if redis.call('EXISTS', from) == 1 then
        redis.call('RENAME', from, to)
        redis.call('PERSIST', to)
    end
end

rename(KEYS[1], KEYS[4])
rename(KEYS[7], KEYS[20])
rename(KEYS[12], KEYS[1])
rename(KEYS[13], KEYS[2])
for i = 7, 10 do
    rename(KEYS[i + 8], KEYS[i])
end
if former_size > 0 then
    rename(KEYS[14], KEYS[5])
else
    redis.call('UNLINK', KEYS[5], KEYS[14])
end
redis.call('SET', KEYS[3], ARGV[2])

local first = redis.call('ZCARD', KEYS[1]) == 0 and redis.call('ZRANGE', KEYS[8], 0, 0)[1] or ''
if first ~= '' then
    local ejected = redis.call('ZSCORE', KEYS[9], first)
    redis.call('ZADD', KEYS[1], redis.call('ZSCORE', KEYS[7], first), first)
    for i = 7, 9 do
        redis.call('ZREM', KEYS[i], first)
    end
    local time = redis.call('TIME')
    local now = time[1] * 1000 + math.floor(time[2] / 1000)
    local record = redis.call('HGET', KEYS[11], first)
    local epoch, doublings, reason =
        string.match(record or '', '^%l+ (%d+) %d+ [01-]+ (%d+) %d+ (.*)$')
    record = string.format('active %s 0 0 %s %.0f %s', epoch or ejected, doublings or 0, now,
        reason or '-')
    redis.call('HSET', KEYS[11], first, record)
end
local strays = redis.call('HLEN', KEYS[11]) > former_size and 1 or 0
return {former_size, kept, former, first, strays}
