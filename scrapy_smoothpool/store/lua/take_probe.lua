-- Hands out members whose time outside is over, each to one caller: its next request probes it.
--
-- KEYS[1]  sorted set, id -> allocations: the members in rotation
-- KEYS[2]  sorted set, id -> allocations: the members that are out
-- KEYS[3]  hash, id -> record, as in report_outcomes.lua
-- KEYS[4]  sorted set, id -> server time of the next step, ms, of those put out
-- KEYS[5]  sorted set, id -> epoch of the ejection
-- KEYS[6]  string, the clock of ejections
-- KEYS[7]  hash, id -> line (its size and names only)
-- KEYS[8]  sorted set, id -> server time of the next step, ms, of those out and unchecked
-- KEYS[9]  string, token of the worker that is publishing
-- KEYS[10] set, ids of those who were put out, or are probed, while it is
-- ARGV[1]  integer, ms to wait for a probe's outcome before another is sent
-- ARGV[2]  integer, epoch since which the caller asks who was put out
-- ARGV[3]  integer, members wanted
-- ARGV[4]  integer, 1 if the unchecked are wanted, too
-- ARGV[5…] string, ids that may not be probed now; they keep nobody else waiting
-- Returns  {epoch now, epoch up to which the list of those put out is complete, ms until the
--          next step that is not due yet or -1 (unchecked ones only if wanted), 1 unless
--          members are missing that the lines name, members, those of them that are unchecked,
--          {id, reason, … handed out}, {id, … put out since, oldest first, 1,000 at most}}
-- Cost     O(log n) when nobody is due, else O((excluded + wanted) × log n);
--          O(members out × log n) once after one of the keys was lost
local CHUNK, MOST = 64, 1000
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local since, wanted = tonumber(ARGV[2]), tonumber(ARGV[3])
local stored = tonumber(redis.call('GET', KEYS[6]))
local epoch = stored or tonumber(redis.call('ZRANGE', KEYS[5], -1, -1, 'WITHSCORES')[2]) or 0
epoch = math.max(epoch, since) -- never behind what somebody has seen: the key may be lost

local function parse(id)
    return string.match(redis.call('HGET', KEYS[3], id) or '',
        '^%l+ (%d+) (%d+ [01-]+ %d+ %d+) (.*)$')
end

-- Whoever is out has a time to wake and an epoch. Where the numbers differ a key was lost (or
-- cut short): a member that is listed but neither in rotation nor out goes back on the bench,
-- one that has no time is due, one that has no epoch is put out anew. One without a record may
-- be unchecked or not: the caller has to be able to probe it, or it might be lost for good.
local out, timed = redis.call('ZCARD', KEYS[2]), redis.call('ZCARD', KEYS[4])
if timed + redis.call('ZCARD', KEYS[8]) ~= out or redis.call('ZCARD', KEYS[5]) ~= out then
    for _, i in ipairs({4, 5, 8}) do
        for _, id in ipairs(redis.call('ZDIFF', 2, KEYS[i], KEYS[2])) do
            if redis.call('HEXISTS', KEYS[7], id) == 1 and not redis.call('ZSCORE', KEYS[1], id) then
                redis.call('ZADD', KEYS[2], 0, id) -- comes back at the least in rotation
            else
                redis.call('ZREM', KEYS[i], id)
            end
        end
    end
    for _, id in ipairs(redis.call('ZINTER', 2, KEYS[4], KEYS[8])) do
        redis.call('ZREM', KEYS[4], id)
    end
    for _, id in ipairs(redis.call('ZDIFF', 3, KEYS[2], KEYS[4], KEYS[8])) do
        local _, _, reason = parse(id)
        local unchecked = reason == 'unchecked' or not reason and ARGV[4] == '1'
        redis.call('ZADD', KEYS[unchecked and 8 or 4], now, id)
    end
    for _, id in ipairs(redis.call('ZDIFF', 2, KEYS[2], KEYS[5])) do
        epoch = epoch + 1
        redis.call('ZADD', KEYS[5], epoch, id)
    end
end

local classes = ARGV[4] == '1' and {4, 8} or {4}
local excluded, due = {}, {}
for i = 5, #ARGV do
    excluded[ARGV[i]] = true
end
for _, class in ipairs(classes) do
    local first, most = 0, #due + wanted
    while #due < most do
        local found = redis.call('ZRANGEBYSCORE', KEYS[class], '-inf', now, 'WITHSCORES', 'LIMIT',
            first, CHUNK)
        for i = 1, #found, 2 do
            if #due < most and not excluded[found[i]] then
                due[#due + 1] = {id = found[i], wake = tonumber(found[i + 1]), class = class}
            end
        end
        if #found < 2 * CHUNK then
            break
        end
        first = first + CHUNK
    end
end
table.sort(due, function(a, b) -- bytewise, which comparing strings is not in every locale
    if a.wake ~= b.wake then
        return a.wake < b.wake
    end
    for i = 1, math.min(#a.id, #b.id) do
        local x, y = string.byte(a.id, i), string.byte(b.id, i)
        if x ~= y then
            return x < y
        end
    end
    return #a.id < #b.id
end)

local leased, stirred = {}, {}
for i = 1, math.min(#due, wanted) do
    local id, class = due[i].id, due[i].class
    if not redis.call('ZSCORE', KEYS[2], id) then
        redis.call('ZREM', KEYS[class], id) -- in a lost member's place; now the numbers differ
    else
        local made, rest, reason = parse(id)
        if not made then
            made, rest = redis.call('ZSCORE', KEYS[5], id) or 0, '0 - 0 0'
            reason = class == 8 and 'unchecked' or '-'
        end
        epoch = math.max(epoch, tonumber(made))
        redis.call('HSET', KEYS[3], id, string.format('probing %s %s %s', made, rest, reason))
        redis.call('ZADD', KEYS[class], now + tonumber(ARGV[1]), id)
        stirred[#stirred + 1] = id
        leased[#leased + 1] = id
        leased[#leased + 1] = reason
    end
end
if #stirred > 0 and redis.call('EXISTS', KEYS[9]) == 1 then
    for from = 1, #stirred, 1000 do
        redis.call('SADD', KEYS[10], unpack(stirred, from, math.min(from + 999, #stirred)))
    end
    redis.call('PEXPIRE', KEYS[10], 60000)
end
if epoch ~= (stored or 0) then
    redis.call('SET', KEYS[6], string.format('%.0f', epoch))
end

local wake = -1
for _, class in ipairs(classes) do
    local later = redis.call('ZRANGEBYSCORE', KEYS[class], '(' .. now, '+inf', 'WITHSCORES', 'LIMIT',
        0, 1)[2]
    wake = later and (wake < 0 or later - now < wake) and later - now or wake
end
local gone = redis.call('ZRANGEBYSCORE', KEYS[5], '(' .. since, '+inf', 'LIMIT', 0, MOST)
local complete = #gone < MOST and epoch or tonumber(redis.call('ZSCORE', KEYS[5], gone[MOST]))
local lines = redis.call('HLEN', KEYS[7])
out = redis.call('ZCARD', KEYS[2])
local members = redis.call('ZCARD', KEYS[1]) + out
local whole = lines > 0 and members >= lines
local unchecked = math.min(out, redis.call('ZCARD', KEYS[8]))
return {epoch, complete, wake, whole and 1 or 0, members, unchecked, leased, gone}
