"""The type checker of the tests: beartype, with an int wherever a float goes.

A module of its own because jaxtyping's import hook takes it by its name.
"""

import beartype

check = beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))
