"""The policy of `prm-jax label`, which isn't a verb yet.

Its options are those of inference/policy.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
import contextlib
import dataclasses
from typing import Any

from prm_jax.cli import flags
from prm_jax.inference import policy as policy_lib


def of(
  args: argparse.Namespace,
) -> tuple[policy_lib.Policy, policy_lib.Sampling]:
  """Returns the policy that the options describe, and how it samples.

  Args:
    args: The parsed arguments.
  """
  writing, _ = flags.value(policy_lib.Writing, vars(args))
  return writing.policy, writing.sampling


def asked(args: argparse.Namespace, name: str) -> dict[str, Any]:
  """Returns what is known of `depends_on` before a policy is loaded.

  Args:
    args: The parsed arguments.
    name: The policy's folder; of what is none nothing is known.
  """
  policy, sampling = of(args)
  return dataclasses.replace(policy, source=name).asked(sampling)


@contextlib.contextmanager
def policy(
  args: argparse.Namespace, counts: Counter[str]
) -> Iterator[policy_lib.Writer]:
  """Yields the checkpoint, or the model of an endpoint, that --policy names.

  Args:
    args: The parsed arguments.
    counts: The counts to which its work is added.
  """
  found, sampling = of(args)
  replies = policy_lib.replies_path(args.output)
  with found.opened(sampling, args.seed, replies, counts) as writer:
    yield writer
