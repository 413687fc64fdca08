"""The strategies of `prm-jax search`, and the options of each."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses

from prm_jax.cli import arguments

# Those of search.particles, mcts and chunks, which load numpy.
RESAMPLING = ("multinomial", "systematic")
PRIORS = ("policy", "uniform")
GUIDANCE = ("contrast", "likelihood")


@dataclasses.dataclass(frozen=True)
class Option:
  """An option of a strategy; see Parser.add_option.

  Args:
    text: What it does.
    default: Its value if it isn't given; None is required.
    choices: The values that it may have; None is any.
  """

  text: str
  default: int | float | str | None
  choices: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Strategy:
  """A strategy.

  Args:
    does: What it does, in one line.
    options: Its options, which are the fields of its rule.
  """

  does: str
  options: Mapping[str, Option]


def add(kind: arguments.Parser, strategy: Strategy) -> None:
  """Adds the options of a strategy."""
  for name, option in strategy.options.items():
    kind.add_option(
      *(f"--{name}", option.text, option.default),
      choices=option.choices,
      required=option.default is None,
    )


def _children(which: str) -> Option:
  return Option(f"the number of children that {which}", 4)


STRATEGIES = dict(
  best_of_n=Strategy(
    "draw whole solutions, and choose one",
    dict(num=Option("the number of solutions", 16)),
  ),
  beam=Strategy(
    "beam search over steps: the best of all children go on",
    dict(
      keep=Option("the number of solutions that go on after each step", 4),
      expand=_children(
        "each of them has; the first step has --keep times as many"
      ),
    ),
  ),
  dvts=Strategy(
    "diverse verifier tree search: beams that don't compete",
    dict(
      trees=Option("the number of beams", 4),
      expand=_children("each beam has after a step; its best goes on"),
    ),
  ),
  rebase=Strategy(
    "share a width among the open solutions by a softmax of their scores"
    " (REBASE)",
    dict(
      width=Option("the number of children of the first step", 16),
      balance_temperature=Option(
        "the temperature of the softmax over scores; a high one shares evenly",
        0.2,
      ),
    ),
  ),
  particle_filter=Strategy(
    "after each step, resample the population of solutions by the odds of their"
    " scores",
    dict(
      num=Option("the number of particles", 16),
      softmax_temperature=Option(
        "the temperature of the softmax over the log-odds of scores; a high one"
        " draws evenly",
        1.0,
      ),
      resampling=Option(
        "multinomial (each particle is drawn by itself) or systematic (equal"
        " scores keep every particle)",
        "multinomial",
        RESAMPLING,
      ),
      iterations=Option(
        "the number of iterations of particle Gibbs; 1 is the filter alone", 1
      ),
    ),
  ),
  mcts=Strategy(
    "Monte-Carlo tree search over steps, with PUCT",
    dict(
      simulations=Option(
        "the number of simulations, each down to the end of a solution", 4
      ),
      expand=_children("a solution gets when a simulation comes to it"),
      exploration=Option("the constant c of PUCT, 0 or more", 1.25),
      prior=Option(
        "the prior of PUCT: policy (the mean probability of the step's tokens)"
        " or uniform",
        "policy",
        PRIORS,
      ),
    ),
  ),
  reject_resample=Strategy(
    "write one solution; draw a step again while its score is too low",
    dict(
      threshold=Option("the score, 0 to 1, from which a step is accepted", 0.5),
      attempts=Option(
        "the most attempts of a step; if none is accepted, the best goes on", 5
      ),
    ),
  ),
  speculate=Strategy(
    "reward-guided speculative decoding: a draft policy writes each step, and"
    " --policy writes it instead if the draft's score is too low",
    dict(
      threshold=Option(
        "the score, 0 to 1, from which a draft is accepted", 0.7
      ),
    ),
  ),
  adaptive_best_of_n=Strategy(
    "best-of-n with as many samples as a problem needs, by its calibrated"
    " chance of success",
    dict(
      pilot=Option("the number of samples that the chance is told from", 4),
      most=Option("the most samples of a problem", 64),
      confidence=Option(
        "the wanted chance that one of the samples is right, above 0 and less"
        " than 1",
        0.99,
      ),
      calibration=Option(
        "the file that `prm-jax search calibrate` wrote", None
      ),
    ),
  ),
  chunk_guidance=Strategy(
    "draw chunks of a fixed number of tokens, and continue the one that a"
    " larger policy finds likelier",
    dict(
      expand=Option("the number of chunks of which one goes on", 16),
      chunk_tokens=Option("the number of tokens of a chunk", 32),
      guidance=Option(
        "contrast (the mean log-probability of a chunk's tokens under the"
        " larger policy minus that under --policy) or likelihood (the first alone)",
        "contrast",
        GUIDANCE,
      ),
    ),
  ),
)
