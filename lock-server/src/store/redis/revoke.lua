-- Ends whatever lease is live and hands the lock on.
--
-- ARGV[7] lock
--
-- Post:  ENDED lease token reason   it was live
--        FREE                       nobody held it
local record = load(ARGV[7], trusted[3])
settle(record)
if not record.holder then
  return reply({ 'FREE' })
end
local lease, token = record.holder.lease, record.holder.token
finish(record, 'revoked')
return reply({ 'ENDED', lease, token, 'revoked' })
