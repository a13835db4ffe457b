-- Notes members whose being in or out has to be carried over to the list being published.
--
-- KEYS[1]  string, token of the publishing worker
-- KEYS[2]  set, the ids
-- ARGV[1]  string, token of this worker's attempt
-- ARGV[2]  integer, ms for which the right to publish is lent from now on
-- ARGV[3]  integer, ms after which the set vanishes
-- ARGV[4…] string, ids
-- Returns  integer, 1, or nil when the right to publish has passed to another worker
-- Cost     O(ids)
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
    return false
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('SADD', KEYS[2], unpack(ARGV, 4))
redis.call('PEXPIRE', KEYS[2], ARGV[3])
return 1
