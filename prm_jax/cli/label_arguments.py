"""The forms of `prm-jax label`: which options each labeller has."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from prm_jax.cli import arguments
from prm_jax.grading import pool
from prm_jax.labelling import consensus
from prm_jax.labelling import llm_judge


def add(command: Callable, add_step: Callable) -> None:
  """Adds `label` and its kinds."""
  label = command("label", None, "label steps without people, by machine")
  kinds = label.add_subparsers(
    metavar="KIND", parser_class=arguments.Parser, required=True
  )

  def kind(name: str, text: str, **more: Any) -> argparse.ArgumentParser:
    add = command(name, arguments.lazily(name, "label"), text, kinds)
    add.set_defaults(kind=name)
    add.add_argument("--input", required=True, help="solutions.jsonl", **more)
    add.add_argument("--format", default="jsonl", help="of the input")
    add.add_argument(
      "--output", required=True, type=arguments.local, help="labelled.jsonl"
    )
    return add

  def add_part(to: argparse.ArgumentParser) -> None:
    to.add_argument("--seed", type=arguments.natural, default=0)
    to.add_argument(
      "--shard", default="0/1", metavar="I/N", help="the I-th part of N"
    )

  def add_run(to: argparse.ArgumentParser) -> None:
    add_part(to)
    to.add_argument(
      "--policy",
      required=True,
      help="what writes: a checkpoint folder, or http://HOST:PORT/v1",
    )
    add_step(to)
    to.add_argument("--model", help="its name behind an http address")
    to.add_argument("--chat", action="store_true", help="... is a chat's")
    to.add_argument(
      "--prompt", default="{problem}", help="... what it is asked"
    )
    to.add_argument(
      "--concurrency", type=int, default=16, help="... requests at a time"
    )
    to.add_argument(
      "--key_variable", help="... environment variable with its key"
    )
    to.add_argument("--temperature", type=float, default=1.0)
    to.add_argument("--top_p", type=float, default=1.0)
    to.add_argument("--max_tokens", type=int, default=512)
    to.add_argument(
      "--batch",
      type=int,
      default=64,
      help="solutions, of whole problems, to a line of the journal",
    )
    to.add_argument(
      "--fresh", action="store_true", help="start over: empty the journal"
    )

  def add_answers(to: argparse.ArgumentParser) -> None:
    to.add_argument(
      "--problems",
      help="problems.jsonl with answers; reference_answer in the input without",
    )
    to.add_argument(
      "--grader", choices=pool.GRADERS, default="rules", help="docs/answers.md"
    )

  add = kind("monte_carlo", "how many of K rollouts of each step end right")
  add_run(add)
  add_answers(add)
  add.add_argument("--completions", type=int, default=8, help="K, of a step")
  add.add_argument(
    "--hard", action="store_true", help="labels are 1[value > threshold]"
  )
  add.add_argument("--threshold", type=float, default=0.0, help="with --hard")
  add.add_argument(
    "--stop_early",
    action="store_true",
    help="with --hard: no more rollouts once the label can't change",
  )
  add.add_argument(
    "--max_width",
    type=float,
    help="no more rollouts once the value's interval is as narrow as this",
  )
  add.add_argument(
    "--confidence", type=float, default=0.95, help="of that interval"
  )
  add.add_argument(
    "--stop_at_zero",
    action="store_true",
    help="no labels behind a step that no rollout came back from",
  )

  add = kind("omega_prm", "the first errors of rollouts, by a tree search")
  add_run(add)
  add_answers(add)
  add.add_argument("--completions", type=int, default=8, help="k, of a state")
  add.add_argument(
    "--root_rollouts", type=int, default=32, help="of a problem alone"
  )
  add.add_argument(
    "--searches", type=int, default=100, help="the most of a problem"
  )
  add.add_argument(
    "--max_rollouts", type=int, help="no search begins after so many"
  )
  add.add_argument(
    "--segments",
    type=int,
    default=0,
    help="search down to a solution's length / SEGMENTS; 0: to single steps",
  )
  add.add_argument(
    "--hard", action="store_true", help="1 before the first error, 0 there"
  )

  add = kind("judge", "what a language model makes of each step")
  add_run(add)
  add.add_argument(
    "--template",
    choices=arguments.TEMPLATES,
    default="processbench",
    help="how it is asked and read",
  )
  add.add_argument("--votes", type=int, default=1, help="of each solution")
  add.add_argument(
    "--min_votes", type=int, default=1, help="fewer readable ones: no label"
  )
  add.add_argument(
    "--vote",
    choices=llm_judge.VOTES,
    default="share",
    help="how votes become labels; weight: by probabilities of words",
  )
  add.add_argument(
    "--keep_texts", action="store_true", help="keep what it wrote"
  )

  add = kind("consensus", "keep what two labellers agree on", action="append")
  add.add_argument(
    "--above_a",
    type=float,
    required=True,
    help="a step of the first --input is right above this: 0, say, for Monte-Carlo",
  )
  add.add_argument(
    "--above_b",
    type=float,
    required=True,
    help="of the second: 0.5, say, for a judge",
  )
  add.add_argument(
    "--labels",
    choices=consensus.LABELS,
    default="hard",
    help="of what is kept: 1 up to the error and 0 there, or those of a or b",
  )

  add = kind("select", "choose what to label next: the convincing wrong ones")
  add_part(add)
  add.add_argument("--checkpoint", type=arguments.local, help="scores by this")
  add_step(add)
  add.add_argument("--scores", help="scores.jsonl, instead of --checkpoint")
  add.add_argument("--budget", type=int, help="solutions in all")
  add.add_argument("--per_problem", type=int, help="solutions of each problem")
  add.add_argument(
    "--wrong_share", type=float, default=0.8, help="of those with wrong answers"
  )
  add.add_argument(
    "--aggregate",
    choices=arguments.AGGREGATES,
    help="of step scores; the checkpoint's own, or product, by default",
  )
  add.add_argument(
    "--labelled",
    action="append",
    default=[],
    metavar="FILE",
    help="solutions not to choose again; once per file",
  )
  add.add_argument(
    "--random", action="store_true", help="any, for comparison: no scores"
  )
