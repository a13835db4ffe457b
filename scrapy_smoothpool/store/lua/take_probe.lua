-- Hands out members whose time outside is over, each to one caller: its next request probes it.
--
-- KEYS[1]  sorted set, id -> allocations: the members in rotation
-- KEYS[2]  sorted set, id -> allocations: the members that are out
-- KEYS[3]  hash, id -> record, as in report_outcomes.lua
-- KEYS[4]  sorted set, id -> server time of the next step, ms
-- KEYS[5]  sorted set, id -> epoch of the ejection
-- KEYS[6]  string, the clock of ejections
-- KEYS[7]  hash, id -> line (its size and names only)
-- ARGV[1]  integer, ms to wait for a probe's outcome before another is sent
-- ARGV[2]  integer, epoch since which the caller asks who was put out
-- ARGV[3]  integer, members wanted
-- ARGV[4…] string, ids that may not be probed now; they keep nobody else waiting
-- Returns  {epoch now, epoch up to which the list of those put out is complete, ms until the
--          next step that is not due yet or -1, 1 unless members are missing that the lines
--          name, {id, reason, … handed out}, {id, … put out since, oldest first, 1,000 at most}}
-- Cost     O(log n) when nobody is due, else O((excluded + wanted) × log n);
--          O(members out × log n) once after one of the keys was lost
local CHUNK, MOST = 64, 1000
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local since, wanted = tonumber(ARGV[2]), tonumber(ARGV[3])
local stored = tonumber(redis.call('GET', KEYS[6]))
local epoch = stored or tonumber(redis.call('ZRANGE', KEYS[5], -1, -1, 'WITHSCORES')[2]) or 0
epoch = math.max(epoch, since) -- never behind what somebody has seen: the key may be lost

-- Whoever is out has a time to wake and an epoch. Where the numbers differ a key was lost (or
-- cut short): a member that is listed but neither in rotation nor out goes back on the bench,
-- one that has no time is due, one that has no epoch is put out anew.
local out = redis.call('ZCARD', KEYS[2])
if redis.call('ZCARD', KEYS[4]) ~= out or redis.call('ZCARD', KEYS[5]) ~= out then
    for i = 4, 5 do
        for _, id in ipairs(redis.call('ZDIFF', 2, KEYS[i], KEYS[2])) do
            if redis.call('HEXISTS', KEYS[7], id) == 1 and not redis.call('ZSCORE', KEYS[1], id) then
                redis.call('ZADD', KEYS[2], 0, id) -- comes back at the least in rotation
            else
                redis.call('ZREM', KEYS[i], id)
            end
        end
    end
    for _, id in ipairs(redis.call('ZDIFF', 2, KEYS[2], KEYS[4])) do
        redis.call('ZADD', KEYS[4], now, id)
    end
    for _, id in ipairs(redis.call('ZDIFF', 2, KEYS[2], KEYS[5])) do
        epoch = epoch + 1
        redis.call('ZADD', KEYS[5], epoch, id)
    end
end

local excluded, taken, first = {}, {}, 0
for i = 4, #ARGV do
    excluded[ARGV[i]] = true
end
while #taken < wanted do
    local due = redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', now, 'LIMIT', first, CHUNK)
    for _, id in ipairs(due) do
        if #taken < wanted and not excluded[id] then
            taken[#taken + 1] = id
        end
    end
    if #due < CHUNK then
        break
    end
    first = first + CHUNK
end

local leased = {}
for _, id in ipairs(taken) do
    if not redis.call('ZSCORE', KEYS[2], id) then
        redis.call('ZREM', KEYS[4], id) -- in a lost member's place; the numbers differ from now on
    else
        local record = redis.call('HGET', KEYS[3], id) or ''
        local made, rest, reason = string.match(record, '^%l+ (%d+) (%d+ [01-]+ %d+ %d+) (.*)$')
        if not made then
            made, rest, reason = redis.call('ZSCORE', KEYS[5], id) or 0, '0 - 0 0', 'unchecked'
        end
        epoch = math.max(epoch, tonumber(made))
        redis.call('HSET', KEYS[3], id, string.format('probing %s %s %s', made, rest, reason))
        redis.call('ZADD', KEYS[4], now + tonumber(ARGV[1]), id)
        leased[#leased + 1] = id
        leased[#leased + 1] = reason
    end
end
if epoch ~= (stored or 0) then
    redis.call('SET', KEYS[6], string.format('%.0f', epoch))
end

local wake = redis.call('ZRANGEBYSCORE', KEYS[4], '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
local gone = redis.call('ZRANGEBYSCORE', KEYS[5], '(' .. since, '+inf', 'LIMIT', 0, MOST)
local complete = #gone < MOST and epoch or tonumber(redis.call('ZSCORE', KEYS[5], gone[MOST]))
local lines = redis.call('HLEN', KEYS[7])
local whole = lines > 0 and redis.call('ZCARD', KEYS[1]) + redis.call('ZCARD', KEYS[2]) >= lines
return {epoch, complete, wake and wake - now or -1, whole and 1 or 0, leased, gone}
