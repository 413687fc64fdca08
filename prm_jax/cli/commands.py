"""The commands: each name, and the verb that it is."""

from __future__ import annotations

from prm_jax import trainer
from prm_jax.datasets import datasets
from prm_jax.datasets import inspection
from prm_jax.demo import demo
from prm_jax.device_check import check_device
from prm_jax.evaluation import choose_threshold
from prm_jax.evaluation import evaluate_best_of_n
from prm_jax.evaluation import evaluate_prmbench
from prm_jax.evaluation import evaluate_processbench
from prm_jax.evaluation import evaluate_steps
from prm_jax.evaluation import evaluate_turns
from prm_jax.huggingface import exchange
from prm_jax.jobs import sample
from prm_jax.jobs import score
from prm_jax.labelling import consensus
from prm_jax.labelling import label_cpmi
from prm_jax.labelling import label_judge
from prm_jax.labelling import label_rollouts
from prm_jax.labelling import label_verify
from prm_jax.labelling import select
from prm_jax.people import label_people
from prm_jax.people import people_report
from prm_jax.people import people_round
from prm_jax.plan import plan
from prm_jax.probes import probe_faithfulness
from prm_jax.reports import compare
from prm_jax.runtime import doctor
from prm_jax.runtime import verbs
from prm_jax.search import calibrate
from prm_jax.search import search
from prm_jax.search import verify_run
from prm_jax.serving import serve
from prm_jax.view import view

VERBS: dict[str, type[verbs.Verb]] = {
  "demo": demo.Demo,
  "train": trainer.Train,
  "sample": sample.Sample,
  "import": exchange.Import,
  "export": exchange.Export,
  "score": score.Score,
  "serve": serve.Serve,
  "view": view.View,
  "plan": plan.Plan,
  "check-device": check_device.CheckDevice,
  "doctor": doctor.Doctor,
}
# Commands that have kinds, each of them a verb: what they do, and the kinds.
KINDS: dict[str, tuple[str, dict[str, type[verbs.Verb]]]] = dict(
  label=(
    "Labels the steps of solutions, by people or automatically",
    dict(
      people=label_people.LabelPeople,
      people_report=people_report.PeopleReport,
      people_round=people_round.PeopleRound,
      monte_carlo=label_rollouts.MonteCarlo,
      omega_prm=label_rollouts.OmegaPRM,
      cpmi=label_cpmi.CPMI,
      judge=label_judge.Judge,
      verify=label_verify.LabelVerify,
      consensus=consensus.Consensus,
      select=select.Select,
    ),
  ),
  search=(
    "Searches for solutions with a policy and a reward model",
    dict(
      **{rule.name: search.by(rule) for rule in search.RULES},
      calibrate=calibrate.Calibrate,
      compare=compare.Compare,
    ),
  ),
  verify=(
    "Answers only if a reward model is sure enough: accepts, or draws again",
    dict(run=verify_run.Verify, choose=choose_threshold.ChooseThreshold),
  ),
  eval=(
    "Evaluates a reward model",
    dict(
      best_of_n=evaluate_best_of_n.EvaluateBestOfN,
      steps=evaluate_steps.EvaluateSteps,
      processbench=evaluate_processbench.EvaluateProcessBench,
      prmbench=evaluate_prmbench.EvaluatePRMBench,
      turns=evaluate_turns.EvaluateTurns,
    ),
  ),
  probe=(
    "Probes whether what a policy shows is what it uses",
    dict(faithfulness=probe_faithfulness.ProbeFaithfulness),
  ),
  data=(
    "Shows, checks, converts, splits and builds data sets of solutions",
    dict(
      inspect=inspection.Inspect,
      stats=inspection.Stats,
      build=datasets.Build,
      convert=datasets.Convert,
      doctor=inspection.Examine,
      split=datasets.Split,
    ),
  ),
)
