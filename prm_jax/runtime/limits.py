"""What a file may hold, at most. docs/data.md has them as a table.

They are far above what real files hold: they exist so that a damaged or hostile
file is refused in one line, instead of filling the memory or a stack.
"""

from __future__ import annotations

# A line of JSON Lines, after unpacking.
LINE_BYTES = 128 << 20
# A JSON document: config.json, model.json, an index of shards, results.
JSON_BYTES = 32 << 20
# Any other file that is read whole, after unpacking: a tokenizer, an array of
# ProcessBench.
FILE_BYTES = 256 << 20
# The rows of a table (Parquet, Arrow), as JSON, are FILE_BYTES at most and this
# often the file's size: as much as gzip can pack. Few bytes of a table may stand
# for any number of values.
TABLE_RATIO = 1024
# What reading a table may allocate: this, and so often the file's size. Of a
# file with one block of rows all may be in memory.
TABLE_MEMORY_BYTES = 1 << 30
TABLE_MEMORY_RATIO = 8
# The processor's time that reading a table may take: this, and as much again for
# each so many bytes of the file.
TABLE_CPU_S = 60
TABLE_CPU_BYTES = 64 << 20
# Objects and lists inside one another; a step of a MATH-APS tree is two levels.
# Python's own limit depends on how deep the stack is, and on the version.
NESTING = 500
# The characters of a number. An integer of so many fits a float64.
NUMBER_CHARACTERS = 300
# A size of a model: the vocabulary, a width, the number of heads.
MODEL_SIZE = 1 << 24
MODEL_LAYERS = 1024
# All numbers that describe positions fit an int32.
MODEL_TOKENS = (1 << 31) - 1
