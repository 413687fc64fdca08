"""Writes the golden trees of the search strategies, tests/golden/search/.

python -m tests.golden.make_search
"""

import json
import pathlib

from prm_jax.search import records
from tests.search import searches


def main() -> None:
  folder = pathlib.Path(__file__).parent / "search"
  folder.mkdir(exist_ok=True)
  for name, rule in searches.RULES.items():
    (tree,) = searches.search(rule, searches.PROBLEMS[:1])
    text = json.dumps(records.tree_record(tree), indent=1)
    (folder / f"{name}.json").write_text(text + "\n")


if __name__ == "__main__":
  main()
