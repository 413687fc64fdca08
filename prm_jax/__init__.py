"""prm_jax: process supervision in JAX.

  import prm_jax
  prm = prm_jax.load("runs/demo/prm")
  problem = "Dee dials 4 up 3 minus 2 ."
  prm.score(problem, ["then 4 + 3 = 7", "now 7 - 2 = 1", "answer 1"]).scores

The names below are the public API; what each needs is imported when it is
first used, so that `import prm_jax` takes no time. CONTRIBUTING.md says what
may change before version 1.0.
"""

import importlib
from typing import Any, TYPE_CHECKING

from prm_jax._version import __version__ as __version__

if TYPE_CHECKING:
  from prm_jax.api import best_of_n as best_of_n
  from prm_jax.api import label as label
  from prm_jax.api import load as load
  from prm_jax.api import train as train
  from prm_jax.client import AsyncClient as AsyncClient
  from prm_jax.client import Client as Client
  from prm_jax.datasets.datasets import Build as Build
  from prm_jax.datasets.datasets import Convert as Convert
  from prm_jax.datasets.datasets import Split as Split
  from prm_jax.datasets.inspection import Examine as Examine
  from prm_jax.datasets.inspection import Inspect as Inspect
  from prm_jax.datasets.inspection import Stats as Stats
  from prm_jax.demo.demo import Demo as Demo
  from prm_jax.device_check.check_device import CheckDevice as CheckDevice
  from prm_jax.errors import InputError as InputError
  from prm_jax.evaluation.choose_threshold import (
    ChooseThreshold as ChooseThreshold,
  )
  from prm_jax.evaluation.evaluate_best_of_n import (
    EvaluateBestOfN as EvaluateBestOfN,
  )
  from prm_jax.evaluation.evaluate_prmbench import (
    EvaluatePRMBench as EvaluatePRMBench,
  )
  from prm_jax.evaluation.evaluate_processbench import (
    EvaluateProcessBench as EvaluateProcessBench,
  )
  from prm_jax.evaluation.evaluate_steps import EvaluateSteps as EvaluateSteps
  from prm_jax.evaluation.evaluate_turns import EvaluateTurns as EvaluateTurns
  from prm_jax.huggingface.exchange import Export as Export
  from prm_jax.huggingface.exchange import Import as Import
  from prm_jax.jobs.policies import Policy as Policy
  from prm_jax.jobs.policies import Server as Server
  from prm_jax.jobs.reward_models import ReferencePolicy as ReferencePolicy
  from prm_jax.jobs.reward_models import RewardModel as RewardModel
  from prm_jax.jobs.sample import Sample as Sample
  from prm_jax.jobs.score import Score as Score
  from prm_jax.labelling.consensus import Consensus as Consensus
  from prm_jax.labelling.label_cpmi import CPMI as CPMI
  from prm_jax.labelling.label_judge import Judge as Judge
  from prm_jax.labelling.label_rollouts import MonteCarlo as MonteCarlo
  from prm_jax.labelling.label_rollouts import OmegaPRM as OmegaPRM
  from prm_jax.labelling.label_verify import LabelVerify as LabelVerify
  from prm_jax.labelling.select import Select as Select
  from prm_jax.people.label_people import LabelPeople as LabelPeople
  from prm_jax.people.people_report import PeopleReport as PeopleReport
  from prm_jax.people.people_round import PeopleRound as PeopleRound
  from prm_jax.plan.plan import Plan as Plan
  from prm_jax.policy.sampler import Sampler as Sampler
  from prm_jax.policy.sampling import Sampling as Sampling
  from prm_jax.probes.probe_faithfulness import (
    ProbeFaithfulness as ProbeFaithfulness,
  )
  from prm_jax.records.jsonl import read_problems as read_problems
  from prm_jax.records.jsonl import read_solutions as read_solutions
  from prm_jax.records.jsonl import write_problems as write_problems
  from prm_jax.records.jsonl import write_solutions as write_solutions
  from prm_jax.reports.compare import Compare as Compare
  from prm_jax.rl import advantages as advantages
  from prm_jax.rl import returns as returns
  from prm_jax.runtime.doctor import Doctor as Doctor
  from prm_jax.schema import Generate as Generate
  from prm_jax.schema import Problem as Problem
  from prm_jax.schema import Solution as Solution
  from prm_jax.schema import StepScores as StepScores
  from prm_jax.scoring.cached_scorer import CachedScorer as CachedScorer
  from prm_jax.scoring.score_sources import load_score as load_score
  from prm_jax.scoring.scorer import Scorer as Scorer
  from prm_jax.search.adaptive import AdaptiveBestOfN as AdaptiveBestOfN
  from prm_jax.search.calibrate import Calibrate as Calibrate
  from prm_jax.search.mcts import MCTS as MCTS
  from prm_jax.search.particles import ParticleFilter as ParticleFilter
  from prm_jax.search.rules import Beam as Beam
  from prm_jax.search.rules import BestOfN as BestOfN
  from prm_jax.search.rules import ChunkGuidance as ChunkGuidance
  from prm_jax.search.rules import DiverseTrees as DiverseTrees
  from prm_jax.search.rules import Rebase as Rebase
  from prm_jax.search.rules import RejectResample as RejectResample
  from prm_jax.search.rules import Speculate as Speculate
  from prm_jax.search.search import Search as Search
  from prm_jax.search.search_limits import Limits as Limits
  from prm_jax.search.verify_run import Verify as Verify
  from prm_jax.serving.serve import Serve as Serve
  from prm_jax.text.messages import trajectory as trajectory
  from prm_jax.trainer import Train as Train
  from prm_jax.training import losses as losses
  from prm_jax.verifiers.verdicts import Verdict as Verdict
  from prm_jax.view.view import View as View

# Each public name's module.
_HOMES = dict(
  InputError="errors",
  Generate="schema",
  Problem="schema",
  Solution="schema",
  StepScores="schema",
  EvaluateBestOfN="evaluation.evaluate_best_of_n",
  EvaluatePRMBench="evaluation.evaluate_prmbench",
  EvaluateProcessBench="evaluation.evaluate_processbench",
  EvaluateSteps="evaluation.evaluate_steps",
  EvaluateTurns="evaluation.evaluate_turns",
  AsyncClient="client",
  Client="client",
  Build="datasets.datasets",
  Convert="datasets.datasets",
  Split="datasets.datasets",
  Examine="datasets.inspection",
  Inspect="datasets.inspection",
  Stats="datasets.inspection",
  Export="huggingface.exchange",
  Import="huggingface.exchange",
  Policy="jobs.policies",
  ReferencePolicy="jobs.reward_models",
  RewardModel="jobs.reward_models",
  Sample="jobs.sample",
  Server="jobs.policies",
  Calibrate="search.calibrate",
  CheckDevice="device_check.check_device",
  ChooseThreshold="evaluation.choose_threshold",
  Compare="reports.compare",
  Demo="demo.demo",
  Doctor="runtime.doctor",
  Consensus="labelling.consensus",
  CPMI="labelling.label_cpmi",
  Judge="labelling.label_judge",
  MonteCarlo="labelling.label_rollouts",
  OmegaPRM="labelling.label_rollouts",
  LabelVerify="labelling.label_verify",
  ProbeFaithfulness="probes.probe_faithfulness",
  Select="labelling.select",
  Verdict="verifiers.verdicts",
  CachedScorer="scoring.cached_scorer",
  Plan="plan.plan",
  Sampler="policy.sampler",
  Sampling="policy.sampling",
  Score="jobs.score",
  Scorer="scoring.scorer",
  Search="search.search",
  Verify="search.verify_run",
  Limits="search.search_limits",
  BestOfN="search.rules",
  Beam="search.rules",
  DiverseTrees="search.rules",
  Rebase="search.rules",
  ParticleFilter="search.particles",
  MCTS="search.mcts",
  RejectResample="search.rules",
  Speculate="search.rules",
  AdaptiveBestOfN="search.adaptive",
  ChunkGuidance="search.rules",
  Serve="serving.serve",
  LabelPeople="people.label_people",
  PeopleReport="people.people_report",
  PeopleRound="people.people_round",
  View="view.view",
  Train="trainer",
  advantages="rl.advantages",
  best_of_n="api",
  label="api",
  load="api",
  load_score="scoring.score_sources",
  losses="training.losses",
  read_problems="records.jsonl",
  read_solutions="records.jsonl",
  returns="rl.returns",
  train="api",
  trajectory="text.messages",
  write_problems="records.jsonl",
  write_solutions="records.jsonl",
)
__all__ = ["__version__", *_HOMES]


# It notices the forks that follow, and imports no jax.
importlib.import_module("prm_jax.runtime.forks")


def __getattr__(name: str) -> Any:
  if name not in _HOMES:
    raise AttributeError(f"module 'prm_jax' has no attribute {name!r}")
  home = _HOMES[name]
  module = importlib.import_module(f"prm_jax.{home}")
  value = module if home.rpartition(".")[2] == name else getattr(module, name)
  globals()[name] = value
  return value


def __dir__() -> list[str]:
  return sorted(__all__)
