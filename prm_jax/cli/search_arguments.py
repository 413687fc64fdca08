"""The arguments of `prm-jax search` and `prm-jax verify`."""

from __future__ import annotations

from typing import Any

from prm_jax.cli import arguments
from prm_jax.cli import policy_arguments
from prm_jax.grading import pool

# Those of search.answers, particles, mcts and chunks, which load numpy.
SELECTIONS = ("best", "weighted", "majority")
RESAMPLING = ("multinomial", "systematic")
PRIORS = ("policy", "uniform")
GUIDANCE = ("contrast", "likelihood")

# The options of each strategy, which are the fields of its rule.
FIELDS = dict(
  best_of_n=("num",),
  beam=("keep", "expand"),
  dvts=("trees", "expand"),
  rebase=("width", "balance_temperature"),
  particle_filter=("num", "softmax_temperature", "resampling", "iterations"),
  mcts=("simulations", "expand", "exploration", "prior"),
  reject_resample=("threshold", "attempts"),
  speculate=("threshold",),
  adaptive_best_of_n=("pilot", "most", "confidence", "calibration"),
  chunk_guidance=("expand", "chunk_tokens", "guidance"),
)
_DOES = dict(
  best_of_n="draw whole solutions, and choose one",
  beam="beam search over steps: the best of all children go on",
  dvts="diverse verifier tree search: beams that don't compete",
  rebase="share a width among the open solutions by a softmax of their scores"
  " (REBASE)",
  particle_filter="after each step, resample the population of solutions by the"
  " odds of their scores",
  mcts="Monte-Carlo tree search over steps, with PUCT",
  reject_resample="write one solution; draw a step again while its score is too"
  " low",
  speculate="reward-guided speculative decoding: a draft policy writes each"
  " step, and --policy writes it instead if the draft's score is too low",
  adaptive_best_of_n="best-of-n with as many samples as a problem needs, by its"
  " calibrated chance of success",
  chunk_guidance="draw chunks of a fixed number of tokens, and continue the one"
  " that a larger policy finds likelier",
)


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
  kind = search.add_command(name, _DOES[name], "search.search", compiles=True)
  kind.set_defaults(kind=name)
  _OPTIONS[name](kind)
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
  by_step = name not in ("best_of_n", "adaptive_best_of_n", "accept_first")
  by_chunk = name == "chunk_guidance"
  policy_arguments.add(kind, "the model that writes", "the problem")
  policy_arguments.add_slots(kind)
  if by_chunk:
    kind.add_option(
      "--scorer",
      "the checkpoint folder of the larger policy, imported like --policy and"
      " with the same tokenizer",
      required=True,
    )
  else:
    _add_scorer(kind)
  kind.add_input(
    "the file of problems, one JSON object per line with id, problem and, if it"
    " is known, answer"
  )
  kind.add_limit("problems of --input")
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
  kind.add_sampling()
  if by_step:
    kind.add_option(
      "--max_steps",
      "the most steps of a solution; a longer one is cut there",
      default=64,
    )
  if by_step and not by_chunk:
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
    "the room of the scorer's prefix cache, in tokens; more are computed again",
    default=65_536,
  )


# --- The options of each strategy -------------------------------------------


def _best_of_n(kind: arguments.Parser) -> None:
  kind.add_option("--num", "the number of solutions", default=16)


def _beam(kind: arguments.Parser) -> None:
  kind.add_option(
    "--keep", "the number of solutions that go on after each step", default=4
  )
  _expand(kind, "each of them has; the first step has --keep times as many")


def _dvts(kind: arguments.Parser) -> None:
  kind.add_option("--trees", "the number of beams", default=4)
  _expand(kind, "each beam has after a step; its best goes on")


def _expand(kind: arguments.Parser, what: str) -> None:
  kind.add_option("--expand", f"the number of children that {what}", default=4)


def _rebase(kind: arguments.Parser) -> None:
  kind.add_option(
    "--width", "the number of children of the first step", default=16
  )
  kind.add_option(
    "--balance_temperature",
    "the temperature of the softmax over scores; a high one shares evenly",
    default=0.2,
  )


def _particle_filter(kind: arguments.Parser) -> None:
  kind.add_option("--num", "the number of particles", default=16)
  kind.add_option(
    "--softmax_temperature",
    "the temperature of the softmax over the log-odds of scores; a high one"
    " draws evenly",
    default=1.0,
  )
  kind.add_option(
    "--resampling",
    "multinomial (each particle is drawn by itself) or systematic (equal scores"
    " keep every particle)",
    choices=RESAMPLING,
    default="multinomial",
  )
  kind.add_option(
    "--iterations",
    "the number of iterations of particle Gibbs; 1 is the filter alone",
    default=1,
  )


def _mcts(kind: arguments.Parser) -> None:
  kind.add_option(
    "--simulations",
    "the number of simulations, each down to the end of a solution",
    default=4,
  )
  _expand(kind, "a solution gets when a simulation comes to it")
  kind.add_option(
    "--exploration", "the constant c of PUCT, 0 or more", default=1.25
  )
  kind.add_option(
    "--prior",
    "the prior of PUCT: policy (the mean probability of the step's tokens) or"
    " uniform",
    choices=PRIORS,
    default="policy",
  )


def _reject_resample(kind: arguments.Parser) -> None:
  kind.add_option(
    "--threshold", "the score, 0 to 1, from which a step is accepted", 0.5
  )
  kind.add_option(
    "--attempts",
    "the most attempts of a step; if none is accepted, the best goes on",
    default=5,
  )


def _speculate(kind: arguments.Parser) -> None:
  kind.add_option(
    "--threshold", "the score, 0 to 1, from which a draft is accepted", 0.7
  )


def _adaptive(kind: arguments.Parser) -> None:
  kind.add_option(
    "--pilot", "the number of samples that the chance is told from", default=4
  )
  kind.add_option("--most", "the most samples of a problem", default=64)
  kind.add_option(
    "--confidence",
    "the wanted chance that one of the samples is right, above 0 and less than"
    " 1",
    default=0.99,
  )
  kind.add_option(
    "--calibration",
    "the file that `prm-jax search calibrate` wrote",
    required=True,
  )


def _chunk_guidance(kind: arguments.Parser) -> None:
  kind.add_option(
    "--expand", "the number of chunks of which one goes on", default=16
  )
  kind.add_option(
    "--chunk_tokens", "the number of tokens of a chunk", default=32
  )
  kind.add_option(
    "--guidance",
    "contrast (the mean log-probability of a chunk's tokens under the larger"
    " policy minus that under --policy) or likelihood (the first alone)",
    choices=GUIDANCE,
    default="contrast",
  )


_OPTIONS: dict[str, Any] = dict(
  best_of_n=_best_of_n,
  beam=_beam,
  dvts=_dvts,
  rebase=_rebase,
  particle_filter=_particle_filter,
  mcts=_mcts,
  reject_resample=_reject_resample,
  speculate=_speculate,
  adaptive_best_of_n=_adaptive,
  chunk_guidance=_chunk_guidance,
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
