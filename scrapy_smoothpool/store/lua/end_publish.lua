-- Gives the right to publish back and throws away what was staged but not swapped in.
--
-- KEYS[1]  string, token of the publishing worker
-- KEYS[2]  sorted set, staging: id -> allocations
-- KEYS[3]  hash, staging: id -> line
-- KEYS[4]  hash, staging: id -> live count that was copied
-- ARGV[1]  string, token of this worker's attempt
-- Returns  integer, 1 if the right was still this worker's, else 0
-- Cost     O(1): freed in the background
redis.call('UNLINK', KEYS[2], KEYS[3], KEYS[4])
if redis.call('GET', KEYS[1]) == ARGV[1] then
    return redis.call('UNLINK', KEYS[1])
end
return 0
