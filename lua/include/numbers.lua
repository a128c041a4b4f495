-- Whole numbers as texts: Redis itself writes large ones with an exponent.
-- Defines: text_of
local function text_of(number) return string.format('%.0f', number) end
