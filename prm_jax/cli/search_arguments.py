"""The arguments of `prm-jax search` and `prm-jax verify`."""

from __future__ import annotations

from prm_jax.cli import arguments
from prm_jax.cli import flags
from prm_jax.cli import strategy_arguments
from prm_jax.evaluation import choose_threshold
from prm_jax.grading import pool
from prm_jax.inference import policy
from prm_jax.reports import compare
from prm_jax.reports import search_page
from prm_jax.search import calibrate

# Those of search.answers, which loads numpy.
SELECTIONS = ("best", "weighted", "majority")
# The options of each strategy, which are the fields of its rule.
FIELDS = {
  name: tuple(strategy.options)
  for name, strategy in strategy_arguments.STRATEGIES.items()
}


def add(commands: arguments.Parser) -> None:
  """Adds `search` and `verify`."""
  search = commands.add_command(
    "search", "search for solutions with a policy and a reward model"
  )
  search.add_commands("STRATEGY")
  for name in FIELDS:
    _add_strategy(search, name)
  flags.add(search, "calibrate", calibrate.Calibrate)
  flags.add(search, "compare", compare.Compare)
  flags.add(search, "page", search_page.SearchPage)
  verify = commands.add_command(
    "verify",
    "answer only if a reward model is sure enough: accept, or draw again",
  )
  verify.add_commands("KIND")
  _add_verify_run(verify)
  flags.add(verify, "choose", choose_threshold.ChooseThreshold)


def _add_strategy(search: arguments.Parser, name: str) -> None:
  strategy = strategy_arguments.STRATEGIES[name]
  kind = search.add_command(name, strategy.does, "search.search", compiles=True)
  kind.set_defaults(kind=name)
  strategy_arguments.add(kind, strategy)
  _add_run(kind, name)
  if name == "speculate":
    kind.add_option(
      "--draft",
      "the policy that writes drafts: a checkpoint folder, or with a server's"
      " --policy the address of a server",
      required=True,
    )
    kind.add_option(
      "--draft_model", "the name of the draft's model at its server"
    )


def _add_run(kind: arguments.Parser, name: str) -> None:
  """Adds the models, the problems, the limits and the outputs of a search."""
  flags.add_value(kind, policy.Writing)
  if name == "chunk_guidance":
    _add_guide(kind)
  else:
    _add_scorer(kind)
  _add_problems(kind)
  if name not in ("best_of_n", "adaptive_best_of_n", "accept_first"):
    _add_steps(kind, are_chunks=name == "chunk_guidance")
  _add_budgets(kind)
  _add_part(kind)


def _add_guide(kind: arguments.Parser) -> None:
  kind.add_option(
    "--scorer",
    "the checkpoint folder of the larger policy, imported like --policy and"
    " with the same tokenizer",
    required=True,
  )


def _add_scorer(kind: arguments.Parser) -> None:
  kind.add_option(
    "--scorer",
    "what scores steps: the checkpoint folder of a reward model,"
    " FILE.py:FUNCTION or MODULE:FUNCTION (of solutions, to a list of scores for"
    " each), or a server's address up to and including /v1",
    required=True,
  )
  kind.add_option(
    "--aggregate",
    "how the scores of a solution's steps become one score (default: last where"
    " a threshold is for single steps, else what the checkpoint names, else"
    " product)",
    choices=arguments.AGGREGATES,
  )
  kind.add_option(
    "--cache_tokens",
    "the most tokens whose keys and values the scorer keeps, in memory that it"
    " takes as they come; more are computed again",
    default=65_536,
  )


def _add_problems(kind: arguments.Parser) -> None:
  kind.add_input(
    "the file of problems, one JSON object per line with id, problem and, if it"
    " is known, answer"
  )
  kind.add_limit("the first N problems of --input")
  kind.add_output(
    "--output",
    "the JSON Lines file to write, one line for each problem: the chosen"
    " solution with answers, candidates, bill and tree (docs/search.md)",
    required=True,
  )
  kind.add_option(
    "--select",
    "how the answer is chosen among the candidates: best (the highest score),"
    " weighted (the answer whose scores have the highest sum) or majority (the"
    " most frequent answer); --output has all three",
    choices=SELECTIONS,
    default="best",
  )
  kind.add_option("--grader", arguments.GRADERS, "rules", choices=pool.GRADERS)


def _add_steps(kind: arguments.Parser, *, are_chunks: bool) -> None:
  """Adds the limits of a search that writes solutions step by step."""
  kind.add_option(
    "--max_steps",
    "the most steps of a solution; a longer one is cut there",
    default=64,
  )
  if are_chunks:
    return
  kind.add_option(
    "--max_step_tokens",
    "the most tokens of a step (default: --max_tokens, which is of the whole"
    " solution)",
    type=arguments.whole,
  )
  kind.add_natural(
    "--lookahead",
    "the number of most likely steps that are written after a step only to"
    " score it, and are paid for",
    default=0,
  )


def _add_budgets(kind: arguments.Parser) -> None:
  kind.add_option(
    "--budget_tokens",
    "begin nothing more for a problem once its policies have sampled as many"
    " tokens (default: no budget)",
    type=arguments.whole,
  )
  kind.add_option(
    "--budget_flops",
    "begin nothing more for a problem once the FLOPs of policies and scorer are"
    " as many, such as 2e12 (checkpoint folders only; default: no budget)",
    type=arguments.positive,
  )


def _add_part(kind: arguments.Parser) -> None:
  """Adds what this process does of the search, and how it saves it."""
  kind.add_option(
    "--seed", "the seed of all random numbers", default=0, type=arguments.seed
  )
  kind.add_option("--shard", arguments.SHARD, default="0/1", metavar="I/N")
  kind.add_option(
    "--batch",
    "the most problems that are searched together and saved together",
    default=16,
  )
  kind.add_switch(
    "--fresh",
    "discard what an earlier run saved in OUTPUT.journal and replace --output,"
    " instead of resuming",
  )


# --- verify -----------------------------------------------------------------


def _add_verify_run(verify: arguments.Parser) -> None:
  kind = verify.add_command(
    "run",
    "draw solutions of each problem until one is accepted; else say that it is"
    " not verified",
    "search.verify",
    compiles=True,
  )
  kind.set_defaults(kind="accept_first")
  kind.add_option(
    "--threshold",
    "the score, 0 to 1, from which a solution is accepted, or the file that"
    " `prm-jax verify choose` wrote",
    required=True,
  )
  kind.add_option(
    "--attempts",
    "the most solutions of a problem (default: those of the file of"
    " --threshold, else 8)",
    type=arguments.whole,
  )
  _add_run(kind, "accept_first")
