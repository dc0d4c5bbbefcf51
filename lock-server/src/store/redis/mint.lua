-- A token that no lease has.
--
-- Post:  MINTED token | EXHAUSTED
local token = mint(0)
return reply(token and { 'MINTED', token } or { 'EXHAUSTED' })
