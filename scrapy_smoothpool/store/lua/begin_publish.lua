-- First step of publishing a list: is there anything to do, and may I do it?
--
-- KEYS[1]  sorted set, id -> allocations: the members in rotation
-- KEYS[2]  sorted set, id -> allocations: the members that are out
-- KEYS[3]  hash, id -> line: the live pool's lines
-- KEYS[4]  string, fingerprint of the live list
-- KEYS[5]  sorted set, what an earlier swap left to be settled
-- KEYS[6]  string, token of the one worker that is publishing now
-- KEYS[7]  sorted set, those who were out, of what is to be settled
-- KEYS[8]  set, ids left over from an attempt before
-- KEYS[9]  string, version of the form in which all this is kept
-- ARGV[1]  string, fingerprint of the list to publish
-- ARGV[2]  string, token of this worker's attempt
-- ARGV[3]  integer, ms for which the right to publish is lent
-- ARGV[4]  string, the version that this worker knows
-- Returns  'version'  another version keeps this pool; nothing of it may be touched
--          'same'     the list is live as it is, nothing to do
--          'busy'     another worker is publishing; ask again
--          'settle'   the list is live but an earlier swap is not settled; yours to do
--          'publish'  yours to do: settle, stage, swap in, settle
-- Cost     O(1)
--
-- The live list counts as missing, whatever its fingerprint says, when its lines are
-- gone or more of them are there than members in rotation and out (a key was evicted,
-- or deleted by hand).
local version = redis.call('GET', KEYS[9])
if version and version ~= ARGV[4] then
    return 'version'
end
if not version then -- it is this one's, or there is no pool
    redis.call('SET', KEYS[9], ARGV[4])
end
local lines = redis.call('HLEN', KEYS[3])
local whole = redis.call('GET', KEYS[4]) == ARGV[1]
    and lines > 0
    and redis.call('ZCARD', KEYS[1]) + redis.call('ZCARD', KEYS[2]) >= lines
if whole and redis.call('ZCARD', KEYS[5]) + redis.call('ZCARD', KEYS[7]) == 0 then
    return 'same'
end
if not redis.call('SET', KEYS[6], ARGV[2], 'NX', 'PX', ARGV[3])
    and redis.call('GET', KEYS[6]) ~= ARGV[2] -- a retried call has it already
then
    -- Whoever holds it is settling, or about to replace the list: either way
    -- there is nothing to add to a list that is live.
    return whole and 'same' or 'busy'
end
redis.call('UNLINK', KEYS[8])
return whole and 'settle' or 'publish'
