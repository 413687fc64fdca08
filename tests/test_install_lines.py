"""Lines that install prm_jax: its name is on no index, so they name a checkout."""

import pathlib
import re
import tomllib

from prm_jax import errors
from prm_jax.runtime import environment

ROOT = pathlib.Path(__file__).resolve().parents[1]
FILES = [
  path
  for pattern in ("*.md", "docs/*.md", "*/README.md")
  for path in sorted(ROOT.glob(pattern))
] + [
  path
  for folder in ("prm_jax", "benchmarks", "experiments", "launch")
  for path in sorted((ROOT / folder).rglob("*.py"))
]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
  "optional-dependencies"
]


def test_no_line_installs_prm_jax_by_its_name():
  by_name = re.compile(r"pip install[\s\"f]+(-\S+\s+)*'?prm[_-]jax\b")
  found = {
    str(path.relative_to(ROOT))
    for path in FILES
    if by_name.search(path.read_text(encoding="utf-8"))
  }
  assert not found


def test_every_extra_that_a_line_names_is_declared():
  named = {
    extra
    for path in FILES
    for text in re.findall(
      r"-e '?\.\[([\w,]+)\]", path.read_text(encoding="utf-8")
    )
    for extra in text.split(",")
  }
  assert {"serve", "verify", "bench"} <= named <= {*EXTRAS}
  assert {*environment.EXTRAS} <= {*EXTRAS}
  line = errors.to_install("serve")
  assert line == "pip install -e '.[serve]' in a checkout of prm_jax"
