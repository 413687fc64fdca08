"""The arguments of `prm-jax label`: which options each labeller has."""

from __future__ import annotations

from typing import Any

from prm_jax.cli import arguments
from prm_jax.grading import pool
from prm_jax.labelling import consensus
from prm_jax.labelling import llm_judge


def add(commands: arguments.Parser) -> None:
  """Adds `label` and its kinds."""
  label = commands.add_command(
    "label", "label steps without people, by machine"
  )
  label.add_commands("KIND")
  _add_monte_carlo(label)
  _add_omega_prm(label)
  _add_judge(label)
  _add_consensus(label)
  _add_select(label)


def _add_kind(
  kinds: arguments.Parser, name: str, text: str, **more: Any
) -> arguments.Parser:
  """Returns the parser of a kind; more: of its --input."""
  kind = kinds.add_command(name, text, f"label.{name}")
  kind.set_defaults(kind=name)
  kind.add_solutions(**more)
  kind.add_path("--output", "labelled.jsonl", required=True)
  return kind


def _add_part(kind: arguments.Parser) -> None:
  kind.add_natural("--seed", default=0)
  kind.add_option("--shard", "the I-th part of N", default="0/1", metavar="I/N")


def _add_run(kind: arguments.Parser) -> None:
  """Adds the policy, how it samples, and the journal."""
  _add_part(kind)
  kind.add_option(
    "--policy",
    "what writes: a checkpoint folder, or http://HOST:PORT/v1",
    required=True,
  )
  kind.add_step()
  kind.add_option("--model", "its name at an http address")
  kind.add_switch("--chat", "... is a chat's")
  kind.add_option("--prompt", "... what it is asked", default="{problem}")
  kind.add_option("--concurrency", "... requests at a time", default=16)
  kind.add_option("--key_variable", "... environment variable with its key")
  kind.add_sampling()
  kind.add_option(
    "--batch",
    "solutions, of whole problems, to a line of the journal",
    default=64,
  )
  kind.add_switch("--fresh", "start over: empty the journal")


def _add_answers(kind: arguments.Parser) -> None:
  kind.add_option(
    "--problems",
    "problems.jsonl with answers; reference_answer in the input without",
  )
  kind.add_option("--grader", "docs/answers.md", "rules", choices=pool.GRADERS)


def _add_monte_carlo(kinds: arguments.Parser) -> None:
  kind = _add_kind(
    kinds, "monte_carlo", "how many of K rollouts of each step end right"
  )
  _add_run(kind)
  _add_answers(kind)
  kind.add_option("--completions", "K, of a step", default=8)
  kind.add_switch("--hard", "labels are 1[value > threshold]")
  kind.add_option("--threshold", "with --hard", default=0.0)
  kind.add_switch(
    "--stop_early", "with --hard: no more rollouts once the label can't change"
  )
  kind.add_option(
    "--max_width",
    "no more rollouts once the value's interval is as narrow as this",
    type=float,
  )
  kind.add_option("--confidence", "of that interval", default=0.95)
  kind.add_switch(
    "--stop_at_zero", "no labels after a step from which no rollout ended right"
  )


def _add_omega_prm(kinds: arguments.Parser) -> None:
  kind = _add_kind(
    kinds, "omega_prm", "the first errors of rollouts, by a tree search"
  )
  _add_run(kind)
  _add_answers(kind)
  kind.add_option("--completions", "k, of a state", default=8)
  kind.add_option("--root_rollouts", "of a problem alone", default=32)
  kind.add_option("--searches", "the most of a problem", default=100)
  kind.add_option("--max_rollouts", "no search begins after so many", type=int)
  kind.add_option(
    "--segments",
    "search down to a solution's length / SEGMENTS; 0: to single steps",
    default=0,
  )
  kind.add_switch("--hard", "1 before the first error, 0 there")


def _add_judge(kinds: arguments.Parser) -> None:
  kind = _add_kind(kinds, "judge", "what a language model makes of each step")
  _add_run(kind)
  kind.add_option(
    "--template",
    "how it is asked and read",
    choices=arguments.TEMPLATES,
    default="processbench",
  )
  kind.add_option("--votes", "of each solution", default=1)
  kind.add_option("--min_votes", "fewer readable ones: no label", default=1)
  kind.add_option(
    "--vote",
    "how votes become labels; log_likelihood: by probabilities of words",
    choices=llm_judge.VOTES,
    default="share",
  )
  kind.add_switch("--keep_texts", "keep what it wrote")


def _add_consensus(kinds: arguments.Parser) -> None:
  kind = _add_kind(
    kinds, "consensus", "keep what two labellers agree on", action="append"
  )
  kind.add_option(
    "--above_a",
    "a step of the first --input is right above this: 0, say, for Monte-Carlo",
    type=float,
    required=True,
  )
  kind.add_option(
    "--above_b",
    "of the second: 0.5, say, for a judge",
    type=float,
    required=True,
  )
  kind.add_option(
    "--labels",
    "of what is kept: 1 up to the error and 0 there, or those of a or b",
    choices=consensus.LABELS,
    default="hard",
  )


def _add_select(kinds: arguments.Parser) -> None:
  kind = _add_kind(
    kinds, "select", "choose what to label next: the convincing wrong ones"
  )
  _add_part(kind)
  kind.add_scorer()
  kind.add_option("--budget", "solutions in all", type=int)
  kind.add_option("--per_problem", "solutions of each problem", type=int)
  kind.add_option("--wrong_share", "of those with wrong answers", default=0.8)
  kind.add_aggregate()
  kind.add_option(
    "--labelled",
    "solutions not to choose again; once per file",
    action="append",
    default=[],
    metavar="FILE",
  )
  kind.add_switch("--random", "any, for comparison: no scores")
