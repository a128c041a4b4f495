"""The definitions of topics: types, slots, keys and the values that their options take."""
