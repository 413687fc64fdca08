"""The arguments of `prm-jax label`: which options each labeller has."""

from __future__ import annotations

from typing import Any

from prm_jax.cli import arguments
from prm_jax.cli import flags
from prm_jax.cli import model_arguments
from prm_jax.grading import pool
from prm_jax.inference import policy
from prm_jax.labelling import consensus
from prm_jax.labelling import llm_judge


def add(commands: arguments.Parser) -> None:
  """Adds `label` and its kinds."""
  label = commands.add_command(
    "label", "label the steps of solutions automatically"
  )
  label.add_commands("KIND")
  _add_monte_carlo(label)
  _add_omega_prm(label)
  _add_judge(label)
  _add_consensus(label)
  _add_select(label)


def _add_kind(
  kinds: arguments.Parser, name: str, does: str, **more: Any
) -> arguments.Parser:
  """Returns the parser of a kind.

  Args:
    kinds: The parser of `label`.
    name: The kind's name.
    does: What the kind does, in one line.
    **more: Arguments of add_solutions.
  """
  kind = kinds.add_command(name, does, f"label.{name}", compiles=True)
  kind.set_defaults(kind=name)
  kind.add_solutions(**more)
  kind.add_output(
    "--output", "the JSON Lines file of solutions to write", required=True
  )
  return kind


def _add_part(kind: arguments.Parser) -> None:
  kind.add_option(
    "--seed", "the seed of all random numbers", default=0, type=arguments.seed
  )
  kind.add_option("--shard", arguments.SHARD, default="0/1", metavar="I/N")


def _add_run(kind: arguments.Parser) -> None:
  """Adds the policy, how it samples, and the journal."""
  _add_part(kind)
  flags.add_value(kind, policy.Writing)
  kind.add_option(
    "--batch",
    "the most lines of --input that are labelled before they are saved; those"
    " of one problem stay together, however many they are",
    default=64,
  )
  kind.add_switch(
    "--fresh",
    "discard the labels that an earlier run saved in OUTPUT.journal and replace"
    " --output, instead of resuming",
  )


def _add_answers(kind: arguments.Parser) -> None:
  kind.add_option(
    "--problems",
    "a file of problems with their right answers, one JSON object per line, in"
    " addition to the field reference_answer of the solutions; two different"
    " answers to one problem are an error (default: only reference_answer)",
  )
  kind.add_option("--grader", arguments.GRADERS, "rules", choices=pool.GRADERS)


def _add_monte_carlo(kinds: arguments.Parser) -> None:
  kind = _add_kind(
    kinds,
    "monte_carlo",
    "label each step with the share of rollouts from it that end in the right"
    " answer",
  )
  _add_run(kind)
  _add_answers(kind)
  kind.add_option(
    "--completions",
    "the most rollouts after each step; the last step has none, its label is"
    " whether the solution's own answer is right",
    default=8,
  )
  kind.add_switch(
    "--hard",
    "label a step 1 if the share is above --threshold, else 0, instead of the"
    " share itself",
  )
  kind.add_option(
    "--threshold",
    "with --hard, the share above which a step is right, at least 0 and less"
    " than 1",
    default=0.0,
  )
  kind.add_switch(
    "--stop_early",
    "with --hard, draw no more rollouts from a step when its label can't change",
  )
  kind.add_option(
    "--max_width",
    "without --hard, draw no more rollouts from a step when the share's"
    " confidence interval is at most this wide, above 0 and at most 1"
    " (default: always draw all)",
    type=arguments.number,
  )
  kind.add_option(
    "--confidence",
    "the level of the interval of --max_width, above 0 and less than 1",
    default=0.95,
  )
  kind.add_switch(
    "--stop_at_zero",
    "draw no rollouts and write no labels for the steps after the first one"
    " whose label is 0",
  )


def _add_omega_prm(kinds: arguments.Parser) -> None:
  kind = _add_kind(
    kinds,
    "omega_prm",
    "sample solutions, find their first errors by binary search in a tree of"
    " rollouts (OmegaPRM), and label their steps",
    text="the file of problems or solutions to read (with --format=jsonl, a"
    " line without steps is a problem); solutions count as rollouts of their"
    " problem",
  )
  _add_run(kind)
  _add_answers(kind)
  kind.add_option(
    "--completions",
    "the number of rollouts after each prefix of steps that a search tries",
    default=8,
  )
  kind.add_option(
    "--root_rollouts",
    "the number of rollouts that start at the problem, before any step;"
    " solutions in --input count as such; a problem with all or none of them"
    " right is left out",
    default=32,
  )
  kind.add_option(
    "--searches", "the most binary searches for each problem", default=100
  )
  kind.add_option(
    "--max_rollouts",
    "begin no further search in a problem after this many rollouts (default: no"
    " limit)",
    type=arguments.whole,
  )
  kind.add_option(
    "--segments",
    "end a search when the steps that may hold the first error have fewer"
    " tokens than the average of the problem's first rollouts divided by this;"
    " 0 searches down to single steps",
    default=0,
  )
  kind.add_switch(
    "--hard",
    "give label 1 to each step before the first error and label 0 to the error;"
    " otherwise a step's label is the share of right rollouts after it, if a"
    " search tried that step",
  )


def _add_judge(kinds: arguments.Parser) -> None:
  kind = _add_kind(
    kinds, "judge", "label each step by asking a language model about it"
  )
  _add_run(kind)
  kind.add_option(
    "--template",
    "the prompt for the judge, and how its answer is read (docs/judge.md)",
    choices=arguments.TEMPLATES,
    default="processbench",
  )
  kind.add_option(
    "--votes", "the number of answers to ask for about each solution", default=1
  )
  kind.add_option(
    "--min_votes",
    "don't label a solution with fewer readable answers than this",
    default=1,
  )
  kind.add_option(
    "--vote",
    "how votes become labels. share: the share of votes by which all steps so"
    " far are correct. majority: 1 before and 0 from the first error that most"
    " votes name, no label if votes tie. log_likelihood: the probability of the"
    " words for correct against those for wrong, the least of the steps so far,"
    " mean over votes; only for the templates dial and thinkprm",
    choices=llm_judge.VOTES,
    default="share",
  )
  kind.add_switch("--keep_texts", "also write the judge's answers to --output")


def _add_consensus(kinds: arguments.Parser) -> None:
  kind = _add_kind(
    kinds,
    "consensus",
    "keep the solutions in which two labellers find the same first error, or"
    " both find none",
    action="append",
    text="a file of labelled solutions; give the option twice, once for each"
    " labeller",
  )
  kind.add_option(
    "--above_a",
    "a number, at least 0 and less than 1: a step of the first --input is right"
    " if its label is greater than it; 0 suits Monte-Carlo labels",
    type=arguments.number,
    required=True,
  )
  kind.add_option(
    "--above_b",
    "the same for the second --input; 0.5 suits a judge's labels",
    type=arguments.number,
    required=True,
  )
  kind.add_option(
    "--labels",
    "the labels to write: hard (1 before the first error, 0 at it, none after"
    " it), or those of the first --input (a) or of the second (b)",
    choices=consensus.LABELS,
    default="hard",
  )


def _add_select(kinds: arguments.Parser) -> None:
  kind = _add_kind(
    kinds,
    "select",
    "choose which solutions to label next: mostly those with a high score and a"
    " wrong answer",
  )
  _add_part(kind)
  model_arguments.add_scorer(kind)
  kind.add_option(
    "--budget",
    "the most solutions to choose in all; give this, --per_problem or both, and"
    " with several shards only --per_problem (default: no limit)",
    type=arguments.whole,
  )
  kind.add_option(
    "--per_problem",
    "the most solutions to choose of each problem (default: no limit)",
    type=arguments.whole,
  )
  kind.add_option(
    "--wrong_share",
    "the share of the chosen solutions for which those with a wrong answer and"
    " the highest scores are taken, in [0, 1]; the rest are the best scored of"
    " the others, whatever their answer, and more if too few are wrong",
    default=0.8,
  )
  kind.add_aggregate()
  kind.add_option(
    "--labelled",
    "a file of solutions that aren't chosen again; repeat the option for each"
    " file",
    action="append",
    default=[],
    metavar="FILE",
  )
  kind.add_switch(
    "--random",
    "choose at random, without scores, as a baseline to compare with",
  )
