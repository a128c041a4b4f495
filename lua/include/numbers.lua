-- Formats whole numbers without an exponent, which Redis would use for large ones.
-- Defines: text_of
local function text_of(number) return string.format('%.0f', number) end
