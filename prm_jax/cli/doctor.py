"""`prm-jax doctor`."""

from __future__ import annotations

import argparse

from prm_jax.runtime import environment


def doctor(args: argparse.Namespace) -> None:
  del args
  print(environment.doctor())
