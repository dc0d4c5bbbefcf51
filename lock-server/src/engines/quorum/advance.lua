-- Takes a node that lost nothing into a newer view that it has missed: after view_change.lua.
--
-- KEYS   meta
-- ARGV   [1] cluster [2] n [3] the new view [4] its members
--
-- Post:  DONE                        it is in that view, now or before
--        or a refusal of view_change.lua; NOTREADY where it is suspect
return move({ ready = true, joining = true, new = true }) or { 'DONE' }
