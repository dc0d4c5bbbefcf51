-- Uses up a token that no lease gets.
--
-- Post:  RAISED p                    p is that token
--        LOW p                       the token is not above p; nothing changed
local function raise(token)
  if tonumber(token) <= accepted() then
    return { 'LOW', accepted() }
  end
  accept(token)
  return { 'RAISED', token }
end

