"""`--config=FILE --help`: the fields of a config."""

from __future__ import annotations

from collections.abc import Sequence

from prm_jax.cli import demo
from prm_jax.cli import train
from prm_jax.runtime import config_files
from prm_jax.runtime import files


def print_config(
  command: str, path: files.PathLike, overrides: Sequence[str]
) -> None:
  """Prints a config's fields and values, as they would be overridden."""
  read = config_files.read(path)
  if command == "demo":
    config = config_files.filled(read, path, overrides, demo.form())
  elif command in ("train", "plan"):
    config = train.filled(read, path, overrides)
  else:
    config = config_files.filled(read, path, overrides)
  print(f"Fields of {path}; override one with --config.FIELD=VALUE:\n")
  for name, value in config_files.fields(config).items():
    print(f"  --config.{name}={value}")
