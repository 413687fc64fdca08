"""The arguments of `prm-jax search` and `prm-jax verify`."""

from __future__ import annotations

from prm_jax.cli import arguments
from prm_jax.cli import policy_arguments
from prm_jax.cli import strategy_arguments
from prm_jax.grading import pool

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
  _add_calibrate(search)
  _add_compare(search)
  _add_page(search)
  verify = commands.add_command(
    "verify",
    "answer only if a reward model is sure enough: accept, or draw again",
  )
  verify.add_commands("KIND")
  _add_verify_run(verify)
  _add_verify_choose(verify)


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
  policy_arguments.add(kind, "the model that writes", "the problem")
  if name == "chunk_guidance":
    _add_guide(kind)
  else:
    _add_scorer(kind)
  _add_problems(kind)
  kind.add_sampling()
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


# --- What is made of results ----------------------------------------------------


def _add_calibrate(search: arguments.Parser) -> None:
  kind = search.add_command(
    "calibrate",
    "fit the chance of success that adaptive_best_of_n needs",
    "search_results.calibrate",
  )
  kind.add_input(
    "what `prm-jax search best_of_n` wrote for problems with answers, which"
    " aren't those to be searched"
  )
  kind.add_output("--output", "the JSON file to write", required=True)
  kind.add_option(
    "--pilot",
    "the number of samples of each problem that the chance is told from; the"
    " others say how often it is right",
    default=4,
  )
  kind.add_option(
    "--quantile",
    "the quantile of the chance to fit, above 0 and less than 1; a lower one is"
    " more careful",
    default=0.1,
  )


def _add_compare(search: arguments.Parser) -> None:
  kind = search.add_command(
    "compare",
    "compare searches of the same problems: accuracy, cost, differences",
    "search_results.compare",
    is_printed=True,
  )
  kind.add_option(
    "--input",
    "NAME=FILE, what `prm-jax search` wrote, or FILE; give the option for each"
    " search; the others are compared with the first",
    action="append",
    required=True,
    metavar="NAME=FILE",
  )
  kind.add_output("--output", "the JSON file to write", required=True)
  kind.add_output(
    "--plot", "an SVG file to write: accuracy against sampled tokens"
  )
  kind.add_option(
    "--seed",
    "the seed of the bootstrap confidence intervals",
    default=0,
    type=arguments.seed,
  )


def _add_page(search: arguments.Parser) -> None:
  kind = search.add_command(
    "page",
    "write a page on which a person walks the trees of a search",
    "search_page.page",
  )
  kind.add_input("what `prm-jax search` wrote")
  kind.add_output("--output", "the HTML file to write", required=True)
  kind.add_option(
    "--problem",
    "the id of a problem to show; repeat the option for each (default: all)",
    action="append",
    metavar="ID",
  )
  kind.add_option(
    "--limit", "the most problems whose trees are shown", default=20
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


def _add_verify_choose(verify: arguments.Parser) -> None:
  kind = verify.add_command(
    "choose",
    "choose a threshold for a wanted precision, on problems with answers",
    "search_results.choose",
    is_printed=True,
  )
  kind.add_input(
    "what `prm-jax search best_of_n` wrote for validation problems with answers"
  )
  kind.add_output(
    "--output",
    "the JSON file to write: the threshold, and the risk-coverage curve",
    required=True,
  )
  kind.add_option(
    "--precision",
    "the share of right answers that is wanted among those accepted, above 0"
    " and at most 1",
    type=arguments.number,
    required=True,
  )
  kind.add_option("--attempts", "the most solutions of a problem", default=8)
  kind.add_option(
    "--confidence",
    "the confidence, above 0 and less than 1, of the precision's lower bound,"
    " which must reach --precision",
    default=0.9,
  )
  kind.add_option(
    "--seed", "the seed of the bootstrap", default=0, type=arguments.seed
  )
