-- Judges up to 1,000 outcomes, in their order: who is put out, who comes back.
--
-- The same state machine as health.py, step for step, by the server's clock. A member
-- that is put out moves from the rotation to the bench, where no pick finds it; one
-- whose probe got through moves back with max(own count, the least in rotation).
--
-- KEYS[1]  sorted set, id -> allocations: the members in rotation
-- KEYS[2]  sorted set, id -> allocations: the members that are out
-- KEYS[3]  hash, id -> record: state epoch consecutive history doublings active_since reason
-- KEYS[4]  sorted set, id -> server time of the next step, ms, of those put out
-- KEYS[5]  sorted set, id -> epoch of the ejection
-- KEYS[6]  string, the clock of ejections
-- KEYS[7]  sorted set, id -> server time of the next step, ms, of those out and unchecked
-- KEYS[8]  string, number of the worker's last delivery, and its reply; may be left out
-- ARGV[1]  integer, failures in a row that put a member out, 0 for never
-- ARGV[2]  integer, ms of the first ejection
-- ARGV[3]  integer, ms of the longest
-- ARGV[4]  integer, percent of the checked members that uncertain failures may put out
-- ARGV[5]  integer, outcomes that are remembered of each member
-- ARGV[6]  integer, outcomes needed before their share of failures counts
-- ARGV[7]  integer, percent of failures among them that puts a member out
-- ARGV[8]  integer, multiple of the first ejection in which one doubling is forgiven
-- ARGV[9]  integer, number of the delivery
-- ARGV[10] integer, ms for which it is remembered
-- ARGV[11…] string, of each outcome: id, epoch of the assignment, kind (see verdicts.py),
--          reason, factor by which an ejection is drawn out
-- Returns  {epoch now, members out, members, those of them unchecked, outcomes, and of each of
--          them that left its member other than active without failures: its place, state after
--          it or '' when it is no member, 1 if it came too late to count, failures in a
--          row, ms of the ejection or -1, 1 if it was spared, 1 if it came back};
--          the same once more, nothing having changed, for a delivery that is sent again; nil
--          for one that is older than the last
-- Cost     O(outcomes + (ejections and returns) × log n)
--
-- Nearly all outcomes are successes of members that have had nothing else for long: those are
-- told by a look at the record, which stays as it is, and take no place in the reply.
--
-- What does not fit together is taken for the safer: whoever is on the bench is out,
-- whatever its record says; without a record nothing is known of a member. Who counts
-- as checked too much, or as unchecked too little, makes the limits narrower. The clock
-- of ejections is never behind an epoch that somebody has seen, so that a new one,
-- should the key be lost, makes no outcome too old for good.
local answered = KEYS[8] and redis.call('GET', KEYS[8])
if answered then
    local _, number = cmsgpack.unpack_one(answered) -- the reply, which may be long, is not wanted
    if number >= tonumber(ARGV[9]) then
        return number == tonumber(ARGV[9]) and select(2, cmsgpack.unpack(answered))
    end
end

local rules = {}
for i = 1, 8 do
    rules[i] = tonumber(ARGV[i])
end
local eject_after, eject_time, eject_time_max, max_percent = unpack(rules, 1, 4)
local window, least, poor, fall_back = unpack(rules, 5, 8)
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local stored = tonumber(redis.call('GET', KEYS[6]))
local epoch = stored or tonumber(redis.call('ZRANGE', KEYS[5], -1, -1, 'WITHSCORES')[2]) or 0
local out = redis.call('ZCARD', KEYS[2])
local members = redis.call('ZCARD', KEYS[1]) + out
local unchecked = out > 0 and math.min(out, redis.call('ZCARD', KEYS[7])) or 0

local ids, records = {}, {}
for i = 11, #ARGV, 5 do
    if not records[ARGV[i]] then
        ids[#ids + 1] = ARGV[i]
        records[ARGV[i]] = {id = ARGV[i]}
    end
end
if #ids > 0 then
    local live = redis.call('ZMSCORE', KEYS[1], unpack(ids))
    local packed = redis.call('HMGET', KEYS[3], unpack(ids))
    local benched = out > 0 and redis.call('ZMSCORE', KEYS[2], unpack(ids)) or {}
    local candidates = unchecked > 0 and redis.call('ZMSCORE', KEYS[7], unpack(ids)) or {}
    for i, id in ipairs(ids) do
        local r = records[id]
        r.packed, r.count = packed[i] or '', benched[i] or live[i]
        r.benched, r.candidate = benched[i], candidates[i]
        if not r.count then
            records[id] = nil
        end
    end
end

local function parse(r)
    local state, made, consecutive, history, doublings, since, reason =
        string.match(r.packed, '^(%l+) (%d+) (%d+) ([01-]+) (%d+) (%d+) (.*)$')
    r.epoch, r.consecutive = tonumber(made or 0), tonumber(consecutive or 0)
    r.history = history and history ~= '-' and history or ''
    r.doublings, r.since = tonumber(doublings or 0), tonumber(since or 0)
    r.candidate = r.benched and (r.candidate or reason == 'unchecked')
    r.reason = reason or r.candidate and 'unchecked' or '-'
    r.state = not r.benched and 'active' or state == 'probing' and state or 'ejected'
    r.packed, epoch = nil, math.max(epoch, r.epoch)
end

local function stays(r, made)
    local record = not r.benched and r.packed or ''
    local since, history = string.match(record, '^active (%d+) 0 (0+) ')
    return since and #history == window and tonumber(since) <= made
end

local function note(r, failed)
    r.history = string.sub(r.history .. (failed and '1' or '0'), -window)
    r.consecutive = failed and r.consecutive + 1 or 0
    r.changed = true
end

local function wake_at(r, when)
    redis.call('ZADD', KEYS[r.candidate and 7 or 4], string.format('%.0f', when), r.id)
end

local function is_poor(r)
    local _, failures = string.gsub(r.history, '1', '')
    return #r.history >= least and failures * 100 >= poor * #r.history
end

local function may_eject(certain)
    local gone, checked = out - unchecked + 1, members - unchecked
    if certain then
        return gone < checked
    end
    return gone * 100 <= checked * max_percent and checked > 1
end

local function eject(r, reason, login, jitter)
    if r.state == 'active' then
        local forgiven = math.floor((now - r.since) / (fall_back * eject_time))
        r.doublings = math.max(0, r.doublings - math.max(0, forgiven))
        redis.call('ZREM', KEYS[1], r.id)
        redis.call('ZADD', KEYS[2], r.count, r.id)
        out = out + 1
    end
    local duration = math.min(eject_time * 2 ^ math.min(r.doublings, 64), eject_time_max)
    duration = math.floor((login and eject_time_max or duration) * jitter)
    epoch = epoch + 1
    redis.call('ZADD', KEYS[5], epoch, r.id)
    wake_at(r, now + duration)
    if not r.candidate then -- which it stays until it has passed
        r.reason = reason
    end
    r.doublings, r.epoch, r.state = r.doublings + 1, epoch, 'ejected'
    r.consecutive, r.history = 0, ''
    return duration
end

local function failed(r, certain, reason, login, jitter)
    note(r, true)
    local consecutive = r.consecutive
    if r.state == 'active' then
        if eject_after == 0 or not (login or consecutive >= eject_after or is_poor(r)) then
            return consecutive, -1, 0
        elseif not may_eject(certain) then
            return consecutive, -1, 1
        end
    end
    return consecutive, eject(r, reason, login, jitter), 0
end

local function succeeded(r)
    note(r, false)
    if r.state == 'active' then
        return 0
    end
    local lowest = tonumber(redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2])
    local count = r.count
    if lowest and lowest < math.huge and lowest > tonumber(count) then
        count = lowest
    end
    redis.call('ZADD', KEYS[1], count, r.id)
    redis.call('ZREM', KEYS[2], r.id)
    redis.call('ZREM', KEYS[4], r.id)
    redis.call('ZREM', KEYS[5], r.id)
    r.state, r.since, r.count, r.candidate = 'active', now, count, nil
    out = out - 1
    unchecked = unchecked - redis.call('ZREM', KEYS[7], r.id)
    return 1
end

local reply = {0, 0, members, 0, (#ARGV - 10) / 5}
local function judge(place, r, made, kind, reason, jitter)
    local stale = not r or r.state == 'ejected' or r.epoch > made
    local probing = r and r.state == 'probing'
    local consecutive, ejected_for, spared, restored = r and r.consecutive or 0, -1, 0, 0
    if stale then -- luacheck: ignore 542
        -- says nothing of the member as it is now
    elseif kind == 'failed' or kind == 'faulty' or kind == 'login' then
        consecutive, ejected_for, spared =
            failed(r, kind ~= 'failed', reason, kind == 'login', jitter)
    elseif kind == 'success' or probing and kind == 'passed' then
        consecutive, restored = 0, succeeded(r)
    elseif probing and (kind == 'unclear' or kind == 'unsent') then
        r.state, r.changed = 'ejected', true
        wake_at(r, kind == 'unclear' and now + eject_time or now)
    end
    local state, n = r and r.state or '', #reply
    if stale or state ~= 'active' or consecutive + spared + restored > 0 then
        reply[n + 1], reply[n + 2], reply[n + 3] = place, state, stale and 1 or 0
        reply[n + 4], reply[n + 5], reply[n + 6] = consecutive, ejected_for, spared
        reply[n + 7] = restored
    end
end
for i = 11, #ARGV, 5 do
    local r, made, kind = records[ARGV[i]], tonumber(ARGV[i + 1]), ARGV[i + 2]
    epoch = math.max(epoch, made)
    if not (r and kind == 'success' and stays(r, made)) then
        if r and r.packed then
            parse(r)
        end
        judge((i - 6) / 5, r, made, kind, ARGV[i + 3], tonumber(ARGV[i + 4]))
    end
end

local changed = {}
for _, id in ipairs(ids) do
    local r = records[id]
    if r and r.changed then
        changed[#changed + 1] = id
        changed[#changed + 1] = string.format('%s %.0f %.0f %s %.0f %.0f %s', r.state, r.epoch,
            r.consecutive, r.history == '' and '-' or r.history, r.doublings, r.since, r.reason)
    end
end
if #changed > 0 then
    redis.call('HSET', KEYS[3], unpack(changed))
end
if epoch ~= (stored or 0) then
    redis.call('SET', KEYS[6], string.format('%.0f', epoch))
end
reply[1], reply[2], reply[4] = epoch, out, unchecked
if KEYS[8] then
    redis.call('SET', KEYS[8], cmsgpack.pack(tonumber(ARGV[9]), reply), 'PX', ARGV[10])
end
return reply
